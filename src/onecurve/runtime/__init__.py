"""From a job and a plan to live training on this rank. Owns the order of events of a run.

Knows every package that builds or runs a part of the training; it starts no processes and prints nothing. Start with
build.py, which reads like a recipe, then run.py, the object that it returns.
"""
