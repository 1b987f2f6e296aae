"""How one parameter is split along the tensor axis.

The text form is used in a plan's table of layouts. `dim 0` splits dimension 0 into equal chunks, one per rank.
`dim 0 in 3 parts` first divides the dimension into three parts and then splits each part over the ranks, as a fused
query-key-value weight needs it.
"""

import re
from dataclasses import dataclass

from onecurve.describe.errors import OnecurveError


@dataclass(frozen=True)
class Layout:
    """The split of one parameter. A parameter without a layout is replicated along the tensor axis."""

    dim: int
    parts: int = 1

    def __str__(self) -> str:
        return f"dim {self.dim}" + (f" in {self.parts} parts" if self.parts > 1 else "")

    @staticmethod
    def parse(text: str) -> "Layout":
        """Parse the text form."""
        match = re.fullmatch(r"dim (\d+)(?: in (\d+) parts)?", text.strip())
        if not match or match[2] == "0":
            raise OnecurveError(f"layout {text!r}: cannot be read; write it like 'dim 0' or 'dim 0 in 3 parts'")
        return Layout(int(match[1]), int(match[2] or 1))

    def runs(self, length: int, rank: int, degree: int) -> list[tuple[int, int]]:
        """Return the ranges [begin, end) of a dimension of size `length` that tensor rank `rank` of `degree` owns."""
        part = length // self.parts
        chunk = part // degree
        return [(n * part + rank * chunk, n * part + (rank + 1) * chunk) for n in range(self.parts)]

    def divides(self, shape: tuple[int, ...], degree: int) -> bool:
        """Return True if a tensor of this shape can be split evenly over `degree` ranks."""
        return self.dim < len(shape) and shape[self.dim] % (self.parts * degree) == 0
