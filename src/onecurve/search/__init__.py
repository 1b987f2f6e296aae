"""Which plans are possible, and which is best. So far: how blocks are spread over pipeline stages (stages.py)."""
