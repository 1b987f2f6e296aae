"""How old the rows of embedding tables may be."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Staleness:
    """How many of the latest updates the rows of a step lack. Steps are counted from 1."""

    steps: int = 0
    warmup: int = 0
    """The first steps, in which rows lack no update."""

    def of(self, step: int) -> int:
        """The number of updates before a step that its rows lack: after the warm-up, one more in each step."""
        return min(self.steps, max(0, step - 1 - self.warmup))

    def applies(self, step: int) -> bool:
        """True if the rows of this step may lack updates. The gradient norm then leaves the tables out: their gradients
        are summed while the next step runs."""
        return self.steps > 0 and step > self.warmup
