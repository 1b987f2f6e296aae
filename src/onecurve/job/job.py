"""The Job: what the user wants trained, said once for every cluster."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from torch import Tensor, nn

from onecurve.describe.convert import nearest
from onecurve.describe.errors import OnecurveError
from onecurve.job.metric import Metric
from onecurve.job.optimizer import OptimizerFactory
from onecurve.job.save import Save
from onecurve.job.schedule import AnySchedule, Schedule
from onecurve.job.weighted import Weighted

Loss = Callable[[Any, Any], Tensor | Weighted]
AnyMetric = Metric | Callable[[Any, Any], Weighted | Tensor]
"""A function that returns a Weighted sum or one value per sample, or a Metric."""
BatchNorm = Literal["sync", "local"]


class Dataset(Protocol):
    """Map-style: `dataset[i]` gives one sample as `(input, target)`."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Any: ...


@dataclass(frozen=True)
class Evaluate:
    """Measure loss and metrics over another dataset, each sample once, every `every` steps and at the end."""

    data: Callable[[], Dataset]
    every: int
    watch: str = "loss"
    """The number whose best value is kept account of: the loss, or a metric."""
    better: Literal["lower", "higher"] = "lower"
    patience: int | None = None
    """Stop early after so many evaluations without a better one."""

    def __post_init__(self) -> None:
        _at_least_one("Evaluate", "every", self.every)
        if not callable(self.data):
            raise OnecurveError(
                f"Evaluate: data is {type(self.data).__name__}; a callable is needed: lambda: MyDataset()"
            )
        if self.better not in ("lower", "higher"):
            raise OnecurveError(f"Evaluate: better = {self.better!r} (known: 'lower', 'higher')")
        if self.patience is not None:
            _at_least_one("Evaluate", "patience", self.patience)


def no_loss(*_: Any) -> Tensor:
    raise OnecurveError("Job: it has no loss; give loss=onecurve.loss.cross_entropy or your own loss(output, target)")


@dataclass(frozen=True, kw_only=True)
class Job:
    """Model, loss, data, optimizer, global batch and steps.

    The model and the data are callables: each rank builds them for itself. A tuple or dict input is spread into the
    model's arguments. The loss returns one value per sample, a `Weighted` sum, or a mean over samples (tested at
    start).
    """

    model: Callable[[], nn.Module]
    data: Callable[[], Dataset]
    optimizer: OptimizerFactory | Mapping[str, OptimizerFactory]
    """One for all parameters; or, where the backward pass is yours, one for each named child of the model."""
    global_batch: int
    loss: Loss = no_loss
    """Left out only where the backward pass is yours: onecurve.prepare(job, backward="mine")."""
    steps: int | None = None
    epochs: float | None = None
    """Instead of steps. The last step runs over into the next pass where the data does not divide evenly."""
    schedule: AnySchedule = field(default_factory=Schedule)
    evaluate: Evaluate | None = None
    metrics: Mapping[str, AnyMetric] = field(default_factory=dict)
    """Measured at evaluations."""
    collate: Callable[[list[Any]], Any] | None = None
    """Makes one batch `(input, target)` of a list of samples; torch's own by default."""
    clip: float | None = None
    """Largest norm of the whole gradient."""
    batch_norm: BatchNorm = "sync"
    """Statistics over all ranks of a round, or over each rank's own samples."""
    weights: str | Path | None = None
    """What to start from instead of the constructor's values: a safetensors file, or a Hugging Face folder."""
    save: Save | None = field(default_factory=Save)
    """None: no checkpoints, only the weights at the end."""
    seed: int = 0

    def __post_init__(self) -> None:
        _at_least_one("Job", "global_batch", self.global_batch)
        if (self.steps is None) == (self.epochs is None):
            raise OnecurveError("Job: give either steps=… or epochs=…")
        if self.steps is not None:
            _at_least_one("Job", "steps", self.steps)
        if self.epochs is not None and not self.epochs > 0:
            raise OnecurveError(f"Job: epochs = {self.epochs}; a number above 0 is needed")
        if self.clip is not None and not (isinstance(self.clip, int | float) and self.clip > 0):
            raise OnecurveError(f"Job: clip = {self.clip!r}; a norm above 0 is needed, or None for no clipping")
        if self.batch_norm not in ("sync", "local"):
            raise OnecurveError(f"Job: batch_norm = {self.batch_norm!r} (known: 'sync', 'local')")
        if self.weights is not None and not isinstance(self.weights, str | Path):
            raise OnecurveError(
                f"Job: weights is a {type(self.weights).__name__}; the path of a file or folder is needed"
            )
        if self.save is not None and not isinstance(self.save, Save):
            raise OnecurveError("Job: save needs an onecurve.Save(every=500), or None for no checkpoints")
        if self.evaluate is not None and not isinstance(self.evaluate, Evaluate):
            raise OnecurveError("Job: evaluate needs an onecurve.Evaluate(lambda: MyDataset(), every=100)")
        if not isinstance(self.metrics, Mapping):
            raise OnecurveError('Job: metrics needs names: metrics={"accuracy": my_accuracy}')
        try:
            float(self.rate(0, 2))
        except Exception as error:
            raise OnecurveError(
                f"Job: schedule: {type(error).__name__}: {error}; give onecurve.cosine(…), linear(…), constant(…), or "
                "a function factor(step, steps) that returns a number"
            ) from None
        if self.evaluate is not None and self.evaluate.watch not in ("loss", *self.metrics):
            known = ["loss", *self.metrics]
            raise OnecurveError(f"Evaluate: watch = {self.evaluate.watch!r} ({nearest(self.evaluate.watch, known)})")
        if not self.optimizers:
            raise OnecurveError("Job: optimizer is empty; name the model's children: {'generator': onecurve.AdamW(…)}")
        optimizers = (("optimizer", each) for each in self.optimizers.values())
        for name, value in (("model", self.model), ("loss", self.loss), ("data", self.data), *optimizers):
            if isinstance(value, nn.Module) and name == "model":
                raise OnecurveError(
                    "Job: model is a module already built; give the callable that builds it: model=MyModel"
                )
            if not callable(value):
                raise OnecurveError(
                    f"Job: {name} is a {type(value).__name__}; a callable is needed ({_CALLABLES[name]})"
                )

    @property
    def optimizers(self) -> dict[str, OptimizerFactory]:
        """By the child of the model that they update; "" is the whole."""
        return dict(self.optimizer) if isinstance(self.optimizer, Mapping) else {"": self.optimizer}

    @property
    def manual_backward(self) -> bool:
        """Whether the job has no step that onecurve could take by itself."""
        return self.loss is no_loss or isinstance(self.optimizer, Mapping)

    def total_steps(self, samples: int) -> int:
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return max(1, -int(-self.epochs * samples // self.global_batch))

    def rate(self, step: int, steps: int) -> float:
        """The schedule's factor at a step."""
        return self.schedule.factor(step, steps) if isinstance(self.schedule, Schedule) else self.schedule(step, steps)


_CALLABLES = {
    "model": "model=MyModel or model=lambda: MyModel(width=64)",
    "loss": "loss=onecurve.loss.cross_entropy or your own loss(output, target)",
    "data": "data=lambda: MyDataset()",
    "optimizer": "optimizer=onecurve.AdamW(lr=3e-4)",
}


def _at_least_one(owner: str, name: str, value: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise OnecurveError(f"{owner}: {name} = {value!r}; a whole number of at least 1 is needed")
