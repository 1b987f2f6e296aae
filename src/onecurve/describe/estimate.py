"""What a plan is predicted to take, term by term."""

from dataclasses import dataclass

from onecurve.describe.plan import Plan


@dataclass(frozen=True)
class Estimate:
    plan: Plan
    seconds: dict[str, float]
    """Of a step, by cause."""
    memory: dict[str, float]
    """Bytes of the fullest rank, by component."""
    available: float
    """Bytes that a rank may take."""
    utilization: float
    """The model's own products, over what the devices could compute in that time."""
    steps: int
    error: float
    """Nine of ten steps were measured within this part of what was predicted."""
    hourly: float | None = None
    """What an hour of all that the plan takes costs."""
    threads: int = 0
    """Cores of each rank, where ranks compute on cores."""

    @property
    def step(self) -> float:
        return sum(self.seconds.values())

    @property
    def used(self) -> float:
        return sum(self.memory.values())

    @property
    def fits(self) -> bool:
        return self.used <= self.available

    @property
    def devices(self) -> int:
        return self.plan.mesh.size

    @property
    def hours(self) -> float:
        return self.step * self.steps / 3600

    @property
    def money(self) -> float | None:
        return None if self.hourly is None else self.hourly * self.hours
