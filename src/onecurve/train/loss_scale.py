"""Loss scaling for fp16: gradients are computed of the loss times a power of two, so that small ones do not vanish."""

from dataclasses import dataclass

_STEPS_TO_GROW = 2000  # as torch.amp.GradScaler


@dataclass
class LossScale:
    """Halved by a step that is not finite, doubled after many that are. The same on all ranks, as outcomes are."""

    value: float = 2.0**16
    good_steps: int = 0

    def update(self, finite: bool) -> None:
        if not finite:
            self.value = max(1.0, self.value / 2)
            self.good_steps = 0
            return
        self.good_steps += 1
        if self.good_steps == _STEPS_TO_GROW:
            self.value *= 2
            self.good_steps = 0
