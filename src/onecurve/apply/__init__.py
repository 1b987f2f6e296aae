"""Build this rank's part of the model from a plan, and run its forward and backward passes.

This package knows torch's parallel engines: DDP (replicate.py), fully_shard (shard.py), DTensor (tensor.py) and
pipeline schedules (pipeline.py). It executes the plan and decides nothing: the caller passes in the blocks, the tensor
layouts and the dataflow between blocks. It must not know about optimizers, datasets, checkpoints or the cost model.

Start with base_part.py, which holds what all parts share. auto_backward.py adds what onecurve needs to run the backward
pass itself; single_stage.py is the part of a plan without the axis `pipeline`, pipeline.py of one with it.
manual_backward.py is the part for training loops in which the user calls backward.
"""
