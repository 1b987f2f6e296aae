"""What `onecurve doctor` and `onecurve --version --verbose` print."""

from collections.abc import Mapping, Sequence

from onecurve.describe.health import HealthCheck


def doctor_lines(checks: Sequence[HealthCheck]) -> list[str]:
    """A line per check, the fix of a problem below it, and the number of problems at the end."""
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        lines.append(f"{check.state:<8}{check.name:<{width}}  {check.text}")
        if check.fix:
            lines.append(f"{'':<8}{'':<{width}}  → {check.fix}")
    problems = sum(check.state == "problem" for check in checks)
    return [*lines, "", f"{problems} problem{'' if problems == 1 else 's'} found" if problems else "no problem found"]


def version_lines(facts: Mapping[str, str]) -> list[str]:
    """A line per fact."""
    width = max(map(len, facts))
    return [f"{name:<{width}}  {value}" for name, value in facts.items()]
