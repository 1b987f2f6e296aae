"""The result of a step, computed from sums that are identical on all ranks.

One all-reduce sums the vectors [loss sum, count, sum of squared gradients, the answers of `StepFlags`, sum of squared
gradients of the parts] of all ranks; the square of each gradient element is counted by one rank. All ranks then compute
the same values and decide the same.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from onecurve.describe.errors import OnecurveError
from onecurve.describe.record import StepRecord, TraceRecord
from onecurve.device.host_copy import HostCopy
from onecurve.device.local_tensor import LocalTensor
from onecurve.device.step_clock import StepMarks
from onecurve.job.batch import LoadTime
from onecurve.job.scalar_form import REFUSED

_TRACE_DIGITS = 6
"""Spans are recorded in microseconds."""
_CLIP_EPSILON = 1e-6  # as in torch.nn.utils.clip_grad_norm_


@dataclass(frozen=True)
class StepOutcome:
    """The result of a step, identical on all ranks."""

    loss: float
    """Mean loss of the global batch."""
    count: float
    """Total count of the loss: samples, or the count that the loss returns, such as tokens."""
    gradient_norm: float
    """L2 norm of the full gradient of the mean loss, before clipping."""
    finite: bool
    """True if the loss and the gradient norm are finite; otherwise the update is skipped."""
    stop: bool
    """True if any rank was asked to stop."""
    save: bool
    """True if any rank requests a checkpoint."""
    snapshot: bool
    """True if a snapshot in memory is due, and all ranks can take it."""
    regroup: bool = False
    """True if a rank was asked to go on in another generation."""
    waited: float = 0.0
    """Sum over the ranks of the share of the time that they wait for others."""
    ranks_waited: int = 0
    """Ranks that know what they waited, and are in that sum."""
    part_square: float = 0.0
    """Sum over the parts of the batch of the squared norm of what each adds to the mean gradient; 0 if it was not
    measured."""


@dataclass
class StepReport:
    """The report of one step.

    On accelerators, reading `loss` or `outcome` waits for the device: to avoid that, read them one step later.
    """

    step: int
    """Number of the step, counted from 1."""
    lr: float
    """Learning rate of the first parameter group."""
    samples: int
    """Samples consumed since the start of training, including this step."""
    loss_scale: float
    """The factor of fp16 loss scaling; 1 for other precisions."""
    nominal: float = field(repr=False)
    """The number that loss sums were divided by before backward; the update corrects it to the true count."""
    sums: Tensor = field(repr=False)
    """[loss sum, count, sum of squared gradients, the answers of `StepFlags`, sum of squared gradients of the parts],
    summed over all ranks."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Duration of the step in seconds, by cause."""
    marks: StepMarks = field(default_factory=StepMarks, repr=False)
    """When the step had which cause; empty if it was not timed, as most steps on an accelerator."""
    time: float = 0.0
    """When the step ended, in seconds since the epoch."""
    memory: int = 0
    """The most bytes of its device that this rank has used so far."""
    skipped_samples: int = 0
    """Samples of this rank's share that were left out."""
    loader_processes: int = 0
    load: LoadTime = field(default_factory=LoadTime)
    """What it took to load this rank's samples of the step."""
    saving_cpu_seconds: float = 0.0
    """CPU time of writing checkpoints since the step before."""
    cpu_seconds: float = 0.0
    """CPU time of this thread since the step before; 0 if a device computes."""
    parts: int = 0
    """Parts of the batch whose gradients were measured, on all ranks; 0 if they were not."""
    refusal: Callable[[], str] = field(default=lambda: "loss: its count is infinite", repr=False)
    """What to raise if a loss has refused a micro-batch of the step, on any rank."""
    _outcome: StepOutcome | None = None

    def __post_init__(self) -> None:
        self._host_sums = HostCopy(self.sums)

    @property
    def outcome(self) -> StepOutcome:
        """The result of the step; waits for the device if it is not finished. Raises OnecurveError on all ranks if a
        loss has refused a micro-batch; the step, and those after it, have changed nothing."""
        if self._outcome is None:
            self._outcome = outcome(self._host_sums.tolist(), self.nominal)
            if self._outcome.count == REFUSED:
                raise OnecurveError(self.refusal())
        return self._outcome

    @property
    def loss(self) -> float:
        """Mean loss of the global batch; waits for the device if the step is not finished."""
        return self.outcome.loss

    def record(self, generation: int = 1) -> StepRecord:
        """The step as a record for the run's log; waits for the device if the step is not finished."""
        outcome = self.outcome
        return StepRecord(
            step=self.step,
            loss=outcome.loss,
            count=outcome.count,
            gradient_norm=outcome.gradient_norm,
            lr=self.lr,
            loss_scale=self.loss_scale,
            samples=self.samples,
            skipped=not outcome.finite,
            seconds=_with_device_time(self.seconds, self.marks),
            memory=self.memory,
            skipped_samples=self.skipped_samples,
            loader_processes=self.loader_processes,
            loading_seconds=self.load.seconds,
            loading_cpu_seconds=self.load.cpu,
            storage_seconds=self.load.storage,
            saving_cpu_seconds=self.saving_cpu_seconds,
            cpu_seconds=self.cpu_seconds,
            parts=self.parts,
            part_square=outcome.part_square * self.parts,
            generation=generation,
            time=self.time,
        )

    def trace(self) -> TraceRecord:
        """The step's spans as a record. Consecutive spans of one cause are joined."""
        joined: list[tuple[str, float, float]] = []
        spans = self.marks.spans
        for span in spans:
            begin, end = round(span.begin, _TRACE_DIGITS), round(span.end, _TRACE_DIGITS)
            if joined and joined[-1][0] == span.cause:
                joined[-1] = span.cause, joined[-1][1], end
            elif end > begin:
                joined.append((span.cause, begin, end))
        exchanged = max((span.end for span in spans if span.cause == "sync"), default=0.0)
        return TraceRecord(self.step, self.time - spans[-1].end, tuple(joined), exchanged)


def _with_device_time(seconds: dict[str, float], marks: StepMarks) -> dict[str, float]:
    """Split what the host does not know the cause of, `step`, in proportion to the device's times."""
    if "step" not in seconds or not marks:
        return seconds
    by_device = marks.seconds
    total, unknown = sum(by_device.values()), seconds["step"]
    if not total:
        return seconds
    # A device that had less to do than the host waited for the host.
    factor = min(1.0, unknown / total)
    split = {cause: factor * value for cause, value in by_device.items()}
    split["other"] = split.get("other", 0.0) + unknown - factor * total
    return {cause: value for cause, value in seconds.items() if cause != "step"} | split


def gradient_squares(local_tensors: Sequence[LocalTensor]) -> Tensor:
    """Sum of the squared gradient elements that this rank counts, in float64."""
    gradients = [
        local_tensor.local.grad
        for local_tensor in local_tensors
        if local_tensor.counts_in_norm
        and not local_tensor.held_by_earlier_stage
        and local_tensor.local.grad is not None
    ]
    if not gradients:
        return torch.zeros((), dtype=torch.float64, device=local_tensors[0].local.device if local_tensors else None)
    return torch.stack(torch._foreach_norm(gradients)).double().square().sum()


def outcome(sums: Sequence[float], nominal: float) -> StepOutcome:
    """Compute the result of a step from the all-reduced sums; gradients are those of loss sum / nominal."""
    loss_sum, count, square_sum, stop, save, snapshot, regroup, waited, ranks_waited, *part_sums = sums
    loss = loss_sum / count if count else math.nan
    norm = math.sqrt(square_sum) * nominal / count if count and square_sum >= 0 else math.nan
    return StepOutcome(
        loss=loss,
        count=count,
        gradient_norm=norm,
        finite=math.isfinite(loss) and math.isfinite(norm) and math.isfinite(count),
        stop=stop > 0,
        save=save > 0,
        snapshot=snapshot > 0,
        regroup=regroup > 0,
        waited=waited,
        ranks_waited=round(ranks_waited),
        part_square=sum(part_sums) * (nominal / count) ** 2 if count else 0.0,
    )


def gradient_factor(sums: Tensor, nominal: float, clip: float | None) -> Tensor:
    """The factor for all gradients: it divides by the true count instead of `nominal`, and clips the norm to `clip`.

    It is computed on the device, so that the host does not wait.
    """
    scale = nominal / sums[1]
    if clip is None:
        return scale
    return scale * (clip / (sums[2].sqrt() * scale + _CLIP_EPSILON)).clamp(max=1.0)


def not_finite(sums: Tensor) -> Tensor:
    """True if the step must be skipped: a sum is not finite or the count is 0. A flag on the device."""
    return ~sums.isfinite().all() | (sums[1] == 0)
