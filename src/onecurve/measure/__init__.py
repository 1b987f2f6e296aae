"""Measures models and machines: finds a model's blocks, traces its profile on fake tensors, derives tensor-parallel
layouts, and probes the speed of devices and links.

Tracing needs no accelerator and allocates no memory for weights, so a model of any size can be profiled. The package
knows torch; it does not know plans, and it makes no decisions: estimate/ turns its results into time, and search/
compares them. apply/ is passed in as functions (see layout_search.SplitContext).

Start with blocks.py, then profiler.py (cost of a model) and layout_search.py (tensor parallelism). cluster_probe.py
measures machines and is independent of the rest.
"""
