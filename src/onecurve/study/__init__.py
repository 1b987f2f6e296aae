"""Searches for the best arguments of a job. The package does not know torch; each trial is a run in its own processes.

search_space.py reads what is searched, study.py asks Optuna what to try next and tells it the results, claims.py lets
several processes and hosts share a study, trial_process.py starts and watches the run of a trial. Start with study.py.
"""
