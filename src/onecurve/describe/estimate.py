"""The predicted time, memory and price of a plan."""

from dataclasses import dataclass, field

from onecurve.describe.plan import Plan


@dataclass(frozen=True)
class PredictedStep:
    """What the ranks of a run are told about a step under their plan."""

    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds of a step by cause; empty if they were not predicted."""
    peak_seconds: float = 0.0
    """Seconds of a step in which all devices compute the model's FLOPs at their peak; 0 if it is not known."""

    @property
    def total(self) -> float:
        """Seconds of a step; 0 if they were not predicted."""
        return sum(self.seconds.values())


@dataclass(frozen=True)
class Estimate:
    """The prediction for one plan on one cluster."""

    plan: Plan
    seconds: dict[str, float]
    """Seconds of a step by cause, such as `forward` or `bubble`; they add up to the step time."""
    memory: dict[str, float]
    """Bytes of the rank that needs the most memory, by component."""
    available_bytes: float
    """Bytes that a rank may use."""
    utilization: float
    """Model FLOPs utilization: the model's own FLOPs, as a fraction of the devices' peak in the step time."""
    steps: int
    error: float
    """Relative error of the step time that nine of ten predictions stay within."""
    price_per_hour: float | None = None
    """Price of all devices of the plan per hour, or None if unknown."""
    threads: int = 0
    """CPU cores per rank; 0 for accelerators."""
    reserved_bytes: float = 0.0
    """Bytes of the device's memory besides `available_bytes`, which plans leave free."""

    @property
    def step(self) -> float:
        """Seconds of a step."""
        return sum(self.seconds.values())

    @property
    def predicted_step(self) -> PredictedStep:
        return PredictedStep(self.seconds, self.utilization * self.step)

    @property
    def memory_bytes(self) -> float:
        """Total bytes of the rank that needs the most memory."""
        return sum(self.memory.values())

    @property
    def fits(self) -> bool:
        return self.memory_bytes <= self.available_bytes

    @property
    def devices(self) -> int:
        return self.plan.mesh.size

    @property
    def hours(self) -> float:
        """Duration of the whole run."""
        return self.step * self.steps / 3600

    @property
    def cost(self) -> float | None:
        """Price of the whole run, or None if unknown."""
        return None if self.price_per_hour is None else self.price_per_hour * self.hours
