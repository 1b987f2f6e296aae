"""Checks that a parallel plan computes the same as training on one device: a reference run in plain PyTorch, and the
comparison with it.

The package shares no code with train/ or apply/, so that a bug there cannot hide in the reference: it is the training
loop that a beginner would write. It does not know how a plan is carried out.

Start with reference.py. comparison.py defines when two float64 runs are equal, loss_curve.py when two float32 loss
curves are; matrix.py lists the plans to check; dropout.py and upcast_mode.py remove differences that are no errors.
"""
