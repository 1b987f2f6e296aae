"""Starts the ranks of one host as processes, tells them what to do, and reports the first failure.

This package knows nothing about jobs and models. Start reading with local.py. The launcher never imports
torch: a *template* process does (template.py; template_process.py is the launcher's side of it), and is forked for each
rank. rank_process.py is a rank as the launcher knows it, launcher.py is the launcher as a rank knows it, and
message_socket.py carries what they say to each other. host_ranks.py runs one generation of ranks, which find each other
in a store that the launcher serves (store.py; rank_store.py is a rank's side of it); failure.py finds the cause among
their failures, which failure_report.py describes. stall_watch.py ends a rank that makes no progress.

*Failures*: rank_page.py shows how far a rank is, also when it hangs or is gone, and rank_watch.py looks at the pages of
all ranks; stack_dump.py asks a rank that holds the interpreter lock for its line, and wait_share.py is how much a rank
waits for others. snapshots.py keeps the memory of the ranks' snapshots, which snapshot_sender.py copies to another
host, and snapshot_source.py finds. How several hosts work together is in the package `hosts`. stop.py is for processes
that nobody forked here.
"""
