"""A run's folder: which files it has, its lock, and reading back what a run wrote.

Knows the files and what is in them, and nothing about training. Start with folder.py.
"""
