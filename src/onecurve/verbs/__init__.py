"""One file per verb, each the story of that verb; the only place that wires rooms together.

run.py and check.py start their ranks with launch/ and are entered again by each rank through rank.py; prepare.py is
for those who keep the loop. All of them put a job together in assembly.py.
"""
