"""Finds out from a run's records where its time went, what limits it, and what a change would gain.

The package is arithmetic on records and estimates; it does not know torch. history_reader.py reads the records
of all ranks into the nouns of history.py, whose size does not grow with the steps.

Start with diagnosis.py, which puts everything together. step_times.py splits the time of a step, wall_time.py that of
the whole run. Each finding is a function that returns a `Finding` or None: pauses.py (checkpoints, evaluations),
waiting.py (data, slow ranks, uneven samples), settings.py (threads, batch norm) and plan_change.py, which asks the
predictor for a better plan.
"""
