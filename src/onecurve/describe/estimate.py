"""What a plan is predicted to take, term by term."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Estimate:
    """Of one step on one device; the terms add up."""

    seconds: dict[str, float] = field(default_factory=dict)
    """By cause."""
    memory: dict[str, float] = field(default_factory=dict)
    """Bytes of the fullest device, by component."""

    @property
    def step_seconds(self) -> float:
        return sum(self.seconds.values())

    @property
    def memory_bytes(self) -> float:
        return sum(self.memory.values())
