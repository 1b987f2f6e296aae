"""The search for the best plan: which plans are possible, which is the fastest that fits, and why the others lost.

This package knows the structure of the search space and the rules that make a plan possible. It must not know formulas
for time or memory, for which it asks estimate/, nor how a plan is executed. Start reading with space.py, which
enumerates plans, and branch_and_bound.py, which finds the best of them without evaluating all; simplicity.py says which
of two plans is simpler.
"""
