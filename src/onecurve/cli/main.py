"""Runs a command, and turns every error into a message and an exit status."""

import argparse
import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import NoReturn

from rich.console import Console
from rich.markup import escape

from onecurve.cli.arguments import read_arguments
from onecurve.cli.exit_status import interrupted_status
from onecurve.describe.errors import InterruptError, full_text
from onecurve.report.log import log_to_stderr


def command() -> NoReturn:
    """Run a command as a process of its own.

    The process ends without taking the interpreter apart, which with torch takes a second.
    """
    status = main()
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as the interpreter does
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status.

    0: success, 1: failure, 2: wrong usage, 130: interrupted by Ctrl-C (SIGINT), 75: interrupted by SIGTERM or SIGHUP,
    which means "start me again"; the last two also if a run was stopped and saved.
    """
    chosen = read_arguments(sys.argv[1:] if arguments is None else arguments)
    if chosen.verbose:
        log_to_stderr()
    verb: Callable[[argparse.Namespace], int] = chosen.verb
    try:
        return verb(chosen)
    except KeyboardInterrupt:
        _complain("interrupted")
        return interrupted_status("SIGINT")
    except InterruptError as error:
        _complain(str(error))
        return interrupted_status(error.signal)
    except BrokenPipeError:  # the reader of the output, such as `head`, has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # the outermost frame: every error becomes a message and an exit status
        return _report(error)


def _report(error: Exception) -> int:
    """Print an error for a person. Under torchrun it is left to torchrun, which shows it once."""
    from onecurve.verbs.rank import report_failure

    if not report_failure(error):
        _complain(full_text(error))
    return 1


def _complain(text: str) -> None:
    console = Console(stderr=True)
    console.show_cursor()  # a rank that was killed while it drew a progress bar could not do it
    console.print(f"[bold red]onecurve:[/bold red] {escape(text)}", highlight=False, soft_wrap=True)
