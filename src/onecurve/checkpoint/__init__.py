"""Files that exist whole or not at all, and hold no pickle. So far: the trained weights (weights.py)."""
