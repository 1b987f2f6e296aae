"""Draws a run as one HTML file: charts, tables and events, readable on a phone, on paper, in light and dark.

The file makes no request and has no script. Lines are SVG that stretches to the width of the window; their labels are
HTML, so that they keep their size. The package turns what `diagnose/` has found into text, and computes nothing of its
own.

Start with run_page.py, the sections of the page. chart.py draws lines and stacked areas, heat_map.py the ranks over the
steps, timeline.py the spans of one step, html.py tables and escaping, style.py has the colors.
"""
