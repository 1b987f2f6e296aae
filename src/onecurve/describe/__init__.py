"""The nouns: plain frozen data that every room speaks (plan, mesh, cluster, record), and their strict text forms.

Knows nothing of torch and does no work. Start with plan.py; `convert.py` turns outside data into nouns and refuses
whatever it does not know.
"""
