"""Where records go (JSON lines, the terminal) and how results are shown. Knows describe/ alone, not torch.

Start with sink.py (the protocol and the JSON lines); progress.py is the bar and its plain form.
"""
