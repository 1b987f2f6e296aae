"""Pure arithmetic: profile + hosts + plan → what a step takes. No torch, no files, no state.

Start with step.py, which adds up the terms; each of them is a file: compute, collective, memory. The few constants that
no data sheet says are in describe/constants.py, with what they mean.
"""
