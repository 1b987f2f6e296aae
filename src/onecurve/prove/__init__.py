"""Is the split job the same maths as one device? A reference in plain PyTorch, and the comparison with it.

Shares no code with train/ or apply/: the reference is the loop a newcomer would write. Start with reference.py;
comparison.py says what equal means, matrix.py which plans are tried, curve.py judges float32 runs.
"""
