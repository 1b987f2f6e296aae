"""Pure arithmetic: what a plan will take. So far: the memory of weights, gradients and optimizer state (memory.py)."""
