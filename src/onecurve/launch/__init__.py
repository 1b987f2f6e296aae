"""Starts the ranks of one host as processes, waits for them, and reports the first failure.

The work is done by torch's elastic agent, with a rendezvous that listens on the loopback device only. This package
knows nothing about jobs, plans or models. Start reading with local.py; rendezvous.py is where ranks meet,
failure_file.py is where a rank leaves its failure, failure.py makes one message of the failures of all ranks, stop.py
handles Ctrl-C inside a rank, stall_watch.py ends a rank that makes no progress.
"""
