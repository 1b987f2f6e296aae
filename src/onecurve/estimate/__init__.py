"""The performance model: profile + cluster + plan → seconds and bytes. Pure arithmetic; no torch, no files.

This package knows formulas and their sources, but not how profiles are measured nor which plans exist. Start reading
with step.py, which adds up the terms of a step; compute.py, collective.py and memory.py contain one kind of term each.
estimator.py applies them to a job on a cluster. The fitted constants are described in describe/constants.py.
"""
