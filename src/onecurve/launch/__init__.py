"""Starts the ranks of one or several hosts as processes, tells them what to do, and reports the first failure.

This package knows nothing about jobs and models. *One host*: start reading with local.py. The launcher never imports
torch: a *template* process does (template.py; template_process.py is the launcher's side of it), and is forked for each
rank. rank_process.py is a rank as the launcher knows it, launcher.py is the launcher as a rank knows it, and
message_socket.py carries what they say to each other. host_ranks.py runs one generation of ranks, which find each other
in a store that the launcher serves (store.py; rank_store.py is a rank's side of it); failure.py finds the cause among
their failures, which failure_report.py describes. stall_watch.py ends a rank that makes no progress.

*Several hosts*: on each, a keeper (keeper.py) meets the others (rendezvous.py, meeting.py, network.py). member.py does
what this host is assigned, leader.py has all hosts do something, and run_keys.py names what they write for each other
in the coordination service. *Failures*: recovery.py leads a run through its generations, and decision.py decides how it
goes on (generation_end.py, rank_page.py). snapshots.py keeps the memory of the ranks' snapshots, which
snapshot_sender.py copies to another host, snapshot_server.py serves, and snapshot_source.py finds. *Other launchers*:
slurm.py submits a run; rank_meeting.py and store_process.py are for ranks that srun or mpirun started, stop.py for all
processes that nobody forked here.
"""
