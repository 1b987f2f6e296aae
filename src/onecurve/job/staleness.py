"""How old the rows of embedding tables may be."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Staleness:
    """How many of the latest updates the rows of a step lack. Steps are counted from 1."""

    steps: int = 0
    warmup: int = 0
    """The first steps, in which rows lack no update."""
    warmup_data: float = 1.0
    """Part of the data that they use. If it is not all, the data begins anew after them."""

    def of(self, step: int) -> int:
        """The number of updates before a step that its rows lack: after the warm-up, one more in each step."""
        return min(self.steps, max(0, step - 1 - self.warmup))

    def applies(self, step: int) -> bool:
        """True if the rows of this step may lack updates. The gradient norm then leaves the tables out: their gradients
        are summed while the next step runs."""
        return self.steps > 0 and step > self.warmup

    @property
    def note(self) -> str:
        """What it means for the embedding tables of a run, for a person; empty if rows lack nothing."""
        if not self.steps:
            return ""
        lack = "the update of the step before" if self.steps == 1 else f"the updates of the {self.steps} steps before"
        data = f" on {self.warmup_data:.2%} of the data" if self.warmup_data < 1 else ""
        begin = f"after {self.warmup} steps of warm-up{data}, " if self.warmup else ""
        return f"{begin}their rows lack {lack}, and the gradient norm leaves them out (staleness={self.steps})"
