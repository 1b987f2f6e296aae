"""Which samples, in which order, on which rank, and how they become batches.

The order is a pure function of (seed, position): nothing is stored, shuffled in place or kept in step between ranks.
Start with order.py; loader.py reads this rank's share through torch's DataLoader.
"""
