"""Pure arithmetic: what a plan will take. So far: memory of the state (memory.py), collectives (collective.py)."""
