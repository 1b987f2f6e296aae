"""What the user hands over: the Job and its parts (losses, optimizer, schedule, evaluation), and the script it is in.

Knows nothing of ranks, plans or meshes: a job reads the same on one device and on thousands. Start with job.py.
"""
