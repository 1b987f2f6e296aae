"""Shows results to people and stores records: the terminal, JSON lines, TensorBoard, plan.toml.

The package turns the data of describe/ into text. It does not know torch and computes no results of its own.

Start with sink.py (the protocol of a sink, and JSON lines) and progress.py (the progress bar of a run). advice.py is
the output of `onecurve plan`, check_table.py that of `check`, cluster.py that of `probe`, summary.py that of `run` and
`export`, why.py and trace.py those of `why`, status_view.py that of `status`; text.py prints lines and wraps them on a
terminal.
"""
