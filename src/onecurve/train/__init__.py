"""One step, many steps: forward and backward of the rounds, one division, clipping, guard, update, evaluation.

Knows a Part (part.py: what this rank holds and how it runs its rounds) but not how it was made. Start with trainer.py.
"""
