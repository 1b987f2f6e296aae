"""The user's side of a training run: the Job, its parts (loss, optimizer, schedule, evaluation, saving) and the script
that defines it.

This package knows nothing about ranks, plans or device meshes: the same job runs on one device and on thousands.
Start reading with job.py.
"""
