"""What was found about a machine."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class HealthCheck:
    """One thing that was checked.

    Args:
        name: What was checked, for example `"shared memory"`.
        state: `"ok"`, `"note"` for something that may matter, or `"problem"`.
        text: What was found.
        fix: What to do about it; empty if it is ok.

    Example::

        problems = [check for check in oc.doctor() if check.state == "problem"]
    """

    name: str
    state: Literal["ok", "note", "problem"]
    text: str
    fix: str = ""
