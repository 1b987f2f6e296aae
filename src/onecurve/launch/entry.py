"""What a launcher needs to know about the program of its ranks."""

from collections.abc import Callable
from importlib import import_module
from typing import Protocol, cast

from onecurve.launch.message_socket import MessageSocket


class RankProgram(Protocol):
    """A module that ranks run. It is named by its import path, because other processes import it."""

    preload: Callable[[str, str, bool], None]
    """(verb, request, with script) → imports what ranks will need for such a request. Called in the template."""
    main: Callable[[str, str, MessageSocket], int]
    """(verb, request, socket of the launcher) → exit status. Called in every rank."""


def program_named(module: str) -> RankProgram:
    """Import the program."""
    return cast(RankProgram, import_module(module))
