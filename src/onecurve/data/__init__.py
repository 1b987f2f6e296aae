"""The sample order and the data loaders: which samples a rank reads, in which order, and how they become batches.

The order is a pure function of (seed, position): nothing is stored, shuffled in place or synchronized between ranks.
This package knows the plan's batch sizes, but nothing about models or process groups. Start reading with order.py;
loader.py reads this rank's share of the samples through torch's DataLoader.
"""
