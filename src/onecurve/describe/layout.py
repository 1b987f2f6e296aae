"""How one parameter lies along the tensor axis.

Its text form stands in a plan's table of layouts: `dim 0` is cut into equal pieces along dimension 0; `dim 0 in 3
parts` first into three parts and each of these along the axis, as a weight that makes q, k and v at once needs it.
"""

import re
from dataclasses import dataclass

from onecurve.describe.errors import OnecurveError


@dataclass(frozen=True)
class Layout:
    """A parameter that no layout is given for is whole on every rank."""

    dim: int
    parts: int = 1

    def __str__(self) -> str:
        return f"dim {self.dim}" + (f" in {self.parts} parts" if self.parts > 1 else "")

    @staticmethod
    def parse(text: str) -> "Layout":
        match = re.fullmatch(r"dim (\d+)(?: in (\d+) parts)?", text.strip())
        if not match or match[2] == "0":
            raise OnecurveError(f"layout {text!r}: cannot be read; it reads like 'dim 0' or 'dim 0 in 3 parts'")
        return Layout(int(match[1]), int(match[2] or 1))

    def runs(self, length: int, place: int, degree: int) -> list[tuple[int, int]]:
        """The stretches [begin, end) of the dimension that rank `place` of `degree` holds, in its order."""
        part = length // self.parts
        local_tensor = part // degree
        return [(n * part + place * local_tensor, n * part + (place + 1) * local_tensor) for n in range(self.parts)]

    def divides(self, shape: tuple[int, ...], degree: int) -> bool:
        return self.dim < len(shape) and shape[self.dim] % (self.parts * degree) == 0
