"""Whether machines are ready to train: what is installed, what the system allows, and whether hosts reach each other.

It knows nothing of jobs, plans and runs, and changes nothing but files of its own. Start reading with `machine.py` for
one host, `folder.py` and `peers.py` for several.
"""
