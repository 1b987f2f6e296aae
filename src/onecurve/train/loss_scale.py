"""Dynamic loss scaling for fp16: backward runs on the loss times a power of two, so that small gradients do not
underflow."""

from dataclasses import dataclass

_GROWTH_INTERVAL = 2000  # steps; the default of torch.amp.GradScaler


@dataclass
class LossScale:
    """The factor of the loss: halved after a step that is not finite, doubled after 2000 finite steps in a row.

    It is the same on all ranks, because every rank sees the same step outcomes.
    """

    value: float = 2.0**16
    good_steps: int = 0
    """Number of finite steps since the last change."""

    def update(self, finite: bool) -> None:
        """Adapt the scale to the outcome of one step."""
        if not finite:
            self.value = max(1.0, self.value / 2)
            self.good_steps = 0
            return
        self.good_steps += 1
        if self.good_steps == _GROWTH_INTERVAL:
            self.value *= 2
            self.good_steps = 0
