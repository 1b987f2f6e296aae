"""One file per verb, each the sequence of events of that verb, and the worker side of those that start ranks.

run.py, check.py and probe.py start ranks with launch/; each rank enters again through rank.py and does the work of the
`_worker` file. proof.py is what a run does before its first update. prepare.py is for users who write their own
training loop. Only this package may use every other one. Start with run.py.
"""
