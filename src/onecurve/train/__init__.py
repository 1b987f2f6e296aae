"""The training step and the evaluation.

A step runs forward and backward for all gradient-accumulation rounds, sums over the ranks, divides by the count once,
clips the gradient, skips the step if it is not finite, and updates the parameters. This package knows a rank's part of
the model only through the protocol `Part` (part.py); it does not know how the plan splits the model. Start reading with
trainer.py.
"""
