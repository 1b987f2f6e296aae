"""A progress bar in a notebook. The output of ranks, which are other processes, does not get there."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from onecurve.describe.errors import OnecurveError
from onecurve.describe.units import seconds_text
from onecurve.job.notebook import notebook_cells
from onecurve.page.notebook import progress_html
from onecurve.verbs.status import status

_SECONDS = 1.0


def in_notebook() -> bool:
    """True in a notebook or another IPython that shows HTML."""
    if notebook_cells() is None:
        return False
    return hasattr(import_module("IPython").get_ipython(), "kernel")


@contextmanager
def shown_progress(run: Path) -> Iterator[None]:
    """Show how a run is doing while the block runs."""
    page = import_module("IPython.display")
    shown = page.display(page.HTML(progress_html(0, 0, "starting")), display_id=True)
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_SECONDS):
            shown.update(page.HTML(_line(run)))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        shown.update(page.HTML(_line(run)))


def _line(run: Path) -> str:
    try:
        now = status(run)
    except (OnecurveError, OSError):
        return progress_html(0, 0, "starting")
    left = f", {seconds_text(now.seconds_left)} left" if now.seconds_left else ""
    evaluation = f", {now.evaluation}" if now.evaluation else ""
    text = f"step {now.step:,}/{now.steps:,}, loss {now.loss:.4f}, {now.samples_per_second:,.0f} samples/s"
    return progress_html(now.step, now.steps, text + left + evaluation)
