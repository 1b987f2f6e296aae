"""What a change is expected to save, and whether that is worth naming."""

from onecurve.describe.diagnosis import Finding, Gain

_LEAST_GAIN = 0.05
"""Gains below this fraction of the time are not worth naming."""
_LEAST_SURE_GAIN = 0.02
"""The least that a change must save even if it helps less than expected."""
_SPREAD = 0.2
"""Times that are simply not spent any more are saved within this fraction."""


def saved(before: float, after: float, spread: float = _SPREAD) -> Gain:
    """The gain of a step that takes `after` seconds instead of `before`. `spread`: relative error of the difference."""
    expected = 1 - after / before if before > 0 else 0.0
    return Gain(max(0.0, expected * (1 - spread)), expected, min(0.99, expected * (1 + spread)))


def worth_naming(findings: list[Finding | None]) -> tuple[Finding, ...]:
    """The findings whose change pays off, the largest gain first."""
    worthwhile = [
        finding
        for finding in findings
        if finding is not None and finding.gain.expected >= _LEAST_GAIN and finding.gain.low >= _LEAST_SURE_GAIN
    ]
    return tuple(sorted(worthwhile, key=lambda finding: -finding.gain.expected))
