"""Keys of an optimizer's state for a parameter that have a meaning for all packages."""

AVERAGE = "average"
"""A weight's moving average, with which it is saved, resumed and exported."""
FULL_STATE = "full_"
"""Keys that begin with this name tensors which every rank has in full, though the parameter may be sharded."""
