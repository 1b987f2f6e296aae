"""The hosts of a run: who leads, which generation runs on which of them, and how a run goes on when some are lost.

Like `launch`, it knows nothing about jobs and models. On each host a keeper (keeper.py) meets the others
(rendezvous.py, meeting.py, network.py). member.py does what this host is assigned, and leader.py has all hosts do
something: membership.py is which hosts there are, followed_keys.py takes in what they write, and run_keys.py names the
keys in the coordination service. A run on one host is led in the same way.

recovery.py leads a run through its generations: generation_end.py is how one ended, and decision.py decides how the run
goes on. While a generation runs, each host writes what is wrong with its ranks (rank_notes.py), and the leader finds
out which of them the others wait for (rank_monitor.py, stalls.py). snapshot_server.py gives other hosts the snapshots
that this one keeps.

slurm.py submits a run. rank_meeting.py and store_process.py are for ranks that srun or mpirun started.
"""
