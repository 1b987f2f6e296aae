"""From torch modules to nouns. So far: which blocks a model has (blocks.py)."""
