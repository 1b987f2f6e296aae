"""What is searched: arguments of a job with a range (`lr=1e-5..1e-2`) or with choices (`width=128,256,512`)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from onecurve.describe.errors import OnecurveError

_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})")
_LOG_RATIO = 10.0
"""Ranges that span this factor are searched by their logarithm."""
_DIGITS = 4


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included."""

    low: float
    high: float
    is_integer: bool

    @property
    def is_logarithmic(self) -> bool:
        return self.low > 0 and self.high / self.low >= _LOG_RATIO

    def text(self, value: float) -> str:
        """A value as the argument of a job; numbers have four digits."""
        return str(round(value)) if self.is_integer else f"{value:.{_DIGITS}g}"


@dataclass(frozen=True)
class Choices:
    """One of several texts."""

    values: tuple[str, ...]


@dataclass(frozen=True)
class SearchSpace:
    """The searched arguments by name, and those that all trials have."""

    searched: dict[str, Range | Choices]
    fixed: tuple[str, ...]

    @property
    def combinations(self) -> int | None:
        """Number of different trials; None if there are as many as one likes."""
        count = 1
        for each in self.searched.values():
            if isinstance(each, Range) and not each.is_integer:
                return None
            count *= len(each.values) if isinstance(each, Choices) else round(each.high - each.low) + 1
        return count

    def arguments(self, texts: dict[str, str]) -> list[str]:
        """The arguments of the job for one trial."""
        return [*self.fixed, *(f"{name}={text}" for name, text in texts.items())]


def read_space(words: Sequence[str]) -> SearchSpace:
    """Read the arguments of `onecurve tune`: `name=low..high`, `name=a,b,c`, and `name=value` for all trials."""
    searched: dict[str, Range | Choices] = {}
    fixed: list[str] = []
    for word in words:
        name, equals, text = word.partition("=")
        if not name or not equals:
            raise OnecurveError(f"tune: {word!r} is not name=value, name=low..high or name=a,b,c")
        if name in searched or any(each.startswith(f"{name}=") for each in fixed):
            raise OnecurveError(f"tune: {name} was given twice")
        if (match := _RANGE.fullmatch(text)) is not None:
            searched[name] = _range(name, match[1], match[2])
        elif "," in text:
            searched[name] = _choices(name, text)
        else:
            fixed.append(word)
    if not searched:
        raise OnecurveError("tune: nothing to search; give a range such as lr=1e-5..1e-2, or choices: width=128,256")
    return SearchSpace(searched, tuple(fixed))


def _range(name: str, low_text: str, high_text: str) -> Range:
    low, high = float(low_text), float(high_text)
    if not low < high:
        raise OnecurveError(f"tune: {name}={low_text}..{high_text}: the first number must be the smaller one")
    return Range(low, high, all(re.fullmatch(r"[+-]?\d+", text) for text in (low_text, high_text)))


def _choices(name: str, text: str) -> Choices:
    values = tuple(value.strip() for value in text.split(","))
    if len(set(values)) < len(values) or not all(values):
        raise OnecurveError(f"tune: {name}={text}: give each choice once, and none that is empty")
    return Choices(values)
