"""All that depends on the kind of device, and what ranks say to each other: typed tensors, never pickled objects.

Start with device.py (what is here), world.py (which rank am I) and exchange.py (sums and short texts between ranks).
"""
