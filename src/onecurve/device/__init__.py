"""Everything that depends on the kind of device, and the exchange of data between ranks: typed tensors, never pickled
objects.

This package knows nothing about jobs or training. Start reading with device.py (the devices of this host), world.py
(the rank of this process), collectives.py (sums and short texts over ranks) and local_tensor.py (the part of a model
tensor that this rank stores).
"""
