"""A run's folder: which files it has, its lock, and reading back what a run wrote.

Knows files and the nouns in them; nothing about training. Start with folder.py.
"""
