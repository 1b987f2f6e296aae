"""From a plan to what this rank holds and runs: mesh, initial weights, replication, sharding, batch norm.

Obeys the plan and derives nothing: which blocks there are, it is told. Start with part.py; tape.py makes the initial
weights, which depend on the seed and the model alone.
"""
