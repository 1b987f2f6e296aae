"""The Job: a complete description of a training run that does not depend on the cluster."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from onecurve.describe.convert import nearest
from onecurve.describe.errors import OnecurveError
from onecurve.describe.tracker import Tracker
from onecurve.job.cache import Cache
from onecurve.job.cadence import check_positive_integer
from onecurve.job.dataset import Dataset
from onecurve.job.evaluate import Evaluate
from onecurve.job.freeze import FrozenModel
from onecurve.job.loss import hugging_face_local_auxiliary
from onecurve.job.metric import Metric
from onecurve.job.optimizer import OptimizerFactory
from onecurve.job.params import Params
from onecurve.job.save import Save
from onecurve.job.schedule import AnySchedule, Schedule, constant, cosine, linear
from onecurve.job.staleness import Staleness
from onecurve.job.weighted import Weighted

Loss = Callable[[Any, Any], Tensor | Weighted]
"""A function (model output, target) → one value per sample, a `Weighted` sum, or a scalar mean over samples."""
AnyMetric = Metric | Callable[[Any, Any], Weighted | Tensor]
"""A `Metric`, or a function (model output, target) → one value per sample or a `Weighted` sum."""
BatchNorm = Literal["sync", "local"]
Buffers = Literal["average"]


def no_loss(*_: Any) -> Tensor:
    """The default loss: raises an error that says how to set one."""
    raise OnecurveError("Job: no loss is set; use loss=onecurve.loss.cross_entropy or your own loss(output, target)")


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to train: model, loss, data, optimizer, global batch size and number of steps.

    The model and the datasets are callables, because every rank builds its own. All arguments are keyword-only.

    Args:
        model: A callable that builds the `nn.Module`, for example the class itself. An input that is a tuple or list
            is passed to `forward` as positional arguments, a dict as keyword arguments.
        data: A callable that builds the training dataset, with samples `(input, target)`: a map-style dataset, an
            `IterableDataset`, or a source of `onecurve.data`.
        optimizer: `onecurve.AdamW(...)`, `SGD`, `LAMB`, `LARS`, `Optimizer`, or any function that takes
            `named_parameters` and returns a `torch.optim.Optimizer`. With `onecurve.prepare(job, backward="mine")` it
            can also be a dict with one optimizer per named child of the model.
        global_batch: Number of samples per optimizer step, over all ranks and gradient-accumulation rounds.
        loss: A function `loss(output, target)` that returns one value per sample (shape `[B]`), a
            `onecurve.Weighted(sum, count)`, or a scalar that is a mean over samples. It is tested before training
            starts: a mean over anything else and values that depend on the other samples of the batch are refused. A
            scalar mean of torch's loss functions (`F.cross_entropy` with class weights or ignored targets) is weighted
            by what it was divided by. Parameters that the loss uses must be those of the model. Hugging Face models
            that return their loss use `onecurve.loss.hugging_face`. Default: none, which only
            `onecurve.prepare(job, backward="mine")` accepts.
        steps: Number of optimizer steps. Set either `steps` or `epochs`. Default: None.
        epochs: Number of passes over the data; fractions are allowed. The number of steps is rounded up, so the last
            step may use samples of the next pass. Default: None.
        schedule: Learning-rate schedule: `onecurve.cosine(...)`, `linear(...)`, `constant(...)`, or a function
            `factor(step, steps)` whose result multiplies the optimizer's learning rate. Default: a constant rate.
        evaluate: A `onecurve.Evaluate`. Default: None, no evaluation.
        metrics: Metrics by name, computed at every evaluation: functions `metric(output, target)` that return one value
            per sample or a `onecurve.Weighted(sum, count)`, or a `onecurve.Metric`. Default: only the loss.
        collate: A function that builds one batch `(input, target)` from a list of samples. Default: None,
            `torch.utils.data.default_collate`.
        clip: Maximum L2 norm of the gradient over all parameters; a larger gradient is scaled down to it. Default:
            None, no clipping.
        batch_norm: `"sync"` computes batch-norm statistics over all data-parallel ranks of a round, `"local"` over the
            samples of each rank alone. Default: `"sync"`.
        buffers: `"average"`: after each round, buffers that forward updates from the samples (moving averages,
            codebooks) are averaged over the data-parallel ranks with equal weights. Default: None; such a model is then
            refused under plans with several data-parallel ranks or several rounds. Batch norm has its own setting.
        freeze: Parameters that are not trained: a pattern of names, where `*` matches any text and `|` separates
            alternatives, such as `"encoder.*|*.bias"`. Default: None, all that require gradients are trained.
        ema: Decay of an exponential moving average of the weights, such as 0.999. Evaluations, the weights that a run
            writes, and exports then use the averages. Default: None, no averages.
        weights: Path of a safetensors file or a Hugging Face folder with the initial weights. Default: None, the values
            that the model's constructor sets.
        save: When to save checkpoints and how many to keep, as a `onecurve.Save`. None saves no checkpoints, only the
            final weights. Default: `Save()`, every ten minutes.
        params: Servers for the rows of the model's embedding tables: `"local://2"`, or a `onecurve.Params`. Default:
            None or `"none"`, the ranks hold the rows.
        cache: A `onecurve.Cache` for data files that are not on the host. Default: None, they are read from the store
            each time.
        workers: Loader processes of each rank; 0 reads in the rank itself. Default: None, chosen automatically so that
            training does not wait for data.
        trackers: Experiment trackers that receive the values of a run from `onecurve run`: `"tensorboard"`, `"mlflow"`,
            `"wandb"`, or an object with the methods of `onecurve.Tracker`. Default: none.
        audit: One in this many steps is computed a second time by another rank with the same kind of machine, or by the
            same rank if there is none, and the bits of all gradients are compared; a difference ends the run before the
            update. With 100, that takes about 1 % of the time. Default: None, no step is audited.
        seed: Seed of the initial weights, the sample order, augmentation and dropout. Default: 0.

    Example::

        oc.Job(
            model=MyModel,
            data=lambda: MyDataset(),
            loss=oc.loss.cross_entropy,
            optimizer=oc.AdamW(lr=3e-4),
            global_batch=256,
            epochs=3,
        )
    """

    model: Callable[[], nn.Module]
    data: Callable[[], Dataset]
    optimizer: OptimizerFactory | Mapping[str, OptimizerFactory]
    global_batch: int
    loss: Loss = no_loss
    steps: int | None = None
    epochs: float | None = None
    schedule: AnySchedule = field(default_factory=Schedule)
    evaluate: Evaluate | None = None
    metrics: Mapping[str, AnyMetric] = field(default_factory=dict)
    collate: Callable[[list[Any]], Any] | None = None
    clip: float | None = None
    batch_norm: BatchNorm = "sync"
    buffers: Buffers | None = None
    freeze: str | None = None
    ema: float | None = None
    weights: str | Path | None = None
    save: Save | None = field(default_factory=Save)
    params: str | Params | None = None
    cache: Cache | None = None
    workers: int | None = None
    trackers: Sequence[str | Tracker] = ()
    audit: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_options()
        self._check_evaluation()
        self._check_schedule()
        self._check_callables()
        if self.freeze is not None and not isinstance(self.model, FrozenModel):
            object.__setattr__(self, "model", FrozenModel(self.model, self.freeze))

    @property
    def optimizers(self) -> dict[str, OptimizerFactory]:
        """Optimizer factories by the name of the model's child that they update; "" stands for the full model."""
        return dict(self.optimizer) if isinstance(self.optimizer, Mapping) else {"": self.optimizer}

    @property
    def row_servers(self) -> Params | None:
        """The servers of the model's embedding tables; None if the ranks hold the rows."""
        return self._params if self._params.has_servers else None

    @property
    def async_workers(self) -> int:
        """Processes that compute different steps at the same time; 0 if all ranks compute each together."""
        return self._params.workers if self._params.is_async else 0

    @property
    def staleness(self) -> Staleness:
        """How many of the latest updates the rows of embedding tables lack."""
        return Staleness(self._params.staleness, self._params.warmup, self._params.warmup_data)

    @property
    def warmup_samples(self) -> int:
        """Samples of a warm-up after which the data begins anew."""
        return self.staleness.warmup * self.global_batch if self.staleness.warmup_data < 1 else 0

    @property
    def _params(self) -> Params:
        return self.params if isinstance(self.params, Params) else Params(self.params or "none")

    @property
    def manual_backward(self) -> bool:
        """True if the job has no loss or several optimizers, so that the user must write the training loop."""
        return self.loss is no_loss or isinstance(self.optimizer, Mapping)

    @property
    def has_local_loss(self) -> bool:
        """True if the loss depends by design on how a batch is split into micro-batches."""
        return self.loss is hugging_face_local_auxiliary

    def total_steps(self, samples: int, step: int = 0, position: int = 0) -> int:
        """Number of optimizer steps on a dataset of `samples` samples.

        `step`, `position`: steps done and samples consumed so far, perhaps with another `global_batch`.
        """
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        samples_left = max(0, math.ceil(self.epochs * samples) + self.warmup_samples - position)
        return step - (-samples_left // self.global_batch)

    def lr_factor(self, step: int, steps: int) -> float:
        """The schedule's learning-rate factor for step `step` (counted from 0) of `steps`."""
        if not isinstance(self.schedule, Schedule):
            return self.schedule(step, steps)
        return self.schedule.factor(step, steps, steps / self.epochs if self.epochs is not None else None)

    def _check_numbers(self) -> None:
        check_positive_integer("Job", "global_batch", self.global_batch)
        if (self.steps is None) == (self.epochs is None):
            actual = "neither" if self.steps is None else "both"
            raise OnecurveError(f"Job: set either steps=… or epochs=…, got {actual}")
        if self.steps is not None:
            check_positive_integer("Job", "steps", self.steps)
        if self.audit is not None:
            check_positive_integer("Job", "audit", self.audit)
        if self.epochs is not None and not self.epochs > 0:
            raise OnecurveError(f"Job: epochs must be above 0, got {self.epochs}")
        if self.workers is not None and not (type(self.workers) is int and self.workers >= 0):
            raise OnecurveError(f"Job: workers must be an integer of at least 0, or None, got {self.workers!r}")
        if self.clip is not None and not (isinstance(self.clip, int | float) and self.clip > 0):
            raise OnecurveError(
                f"Job: clip must be a gradient norm above 0, or None for no clipping; got {self.clip!r}"
            )

    def _check_options(self) -> None:
        if self.batch_norm not in ("sync", "local"):
            raise OnecurveError(f"Job: batch_norm must be 'sync' or 'local', got {self.batch_norm!r}")
        if self.buffers not in ("average", None):
            raise OnecurveError(f"Job: buffers must be 'average' or None, got {self.buffers!r}")
        if self.freeze is not None and not (isinstance(self.freeze, str) and all(self.freeze.split("|"))):
            raise OnecurveError(
                f"Job: freeze must be a pattern of parameter names such as 'encoder.*', got {self.freeze!r}"
            )
        if self.ema is not None and not (isinstance(self.ema, float) and 0 < self.ema < 1):
            raise OnecurveError(
                f"Job: ema must be the decay of an average between 0 and 1, such as 0.999; got {self.ema!r}"
            )
        if self.ema is not None and (self.manual_backward or self.row_servers is not None):
            raise OnecurveError("Job: ema is not possible with several optimizers, without a loss, or with params=…")
        if self.weights is not None and not isinstance(self.weights, str | Path):
            raise OnecurveError(f"Job: weights must be the path of a file or folder, got {type(self.weights).__name__}")
        if self.params is not None and not isinstance(self.params, str | Params):
            raise OnecurveError(
                f"Job: params must be an address such as 'local://2' or a onecurve.Params, got {self.params!r}"
            )
        if isinstance(self.trackers, str):
            raise OnecurveError(f"Job: trackers must be a list, for example [{self.trackers!r}]")
        for tracker in self.trackers:
            if tracker not in _TRACKERS and not (isinstance(tracker, Tracker) and not isinstance(tracker, str)):
                raise OnecurveError(
                    f"Job: trackers must be names ({', '.join(_TRACKERS)}) or objects with the methods begin, log and "
                    f"end of onecurve.Tracker; got {tracker!r}"
                )
        if self.cache is not None and not isinstance(self.cache, Cache):
            raise OnecurveError(
                'Job: cache must be a onecurve.Cache, for example onecurve.Cache("/scratch", "200G"); got '
                f"{type(self.cache).__name__}"
            )
        self._params  # noqa: B018 - refuses an address that is none
        if self.save is not None and not isinstance(self.save, Save):
            raise OnecurveError(
                "Job: save must be a onecurve.Save, for example onecurve.Save(every=500), or None for no checkpoints; "
                f"got {type(self.save).__name__}"
            )

    def _check_evaluation(self) -> None:
        if self.evaluate is not None and not isinstance(self.evaluate, Evaluate):
            raise OnecurveError(
                "Job: evaluate must be a onecurve.Evaluate, for example onecurve.Evaluate(lambda: MyDataset(), "
                f"every=100); got {type(self.evaluate).__name__}"
            )
        if not isinstance(self.metrics, Mapping):
            raise OnecurveError(
                f'Job: metrics must be a dict, for example metrics={{"accuracy": my_accuracy}}; '
                f"got {type(self.metrics).__name__}"
            )
        if self.evaluate is not None and self.evaluate.watch not in ("loss", *self.metrics):
            known = ["loss", *self.metrics]
            raise OnecurveError(
                f"Evaluate: watch must be 'loss' or the name of a metric, got {self.evaluate.watch!r} "
                f"({nearest(self.evaluate.watch, known)})"
            )

    def _check_schedule(self) -> None:
        if isinstance(self.schedule, Schedule) and self.schedule.warmup_epochs is not None and self.epochs is None:
            raise OnecurveError(
                f"Job: schedule {self.schedule}: a warmup in epochs needs epochs=… in the job instead of steps=…; give "
                "the warmup as a number of steps, or as a fraction such as 0.03"
            )
        name = getattr(self.schedule, "__name__", "")
        makers: tuple[Any, ...] = (constant, cosine, linear)
        if self.schedule in makers:
            raise OnecurveError(f"Job: schedule is the function {name}; call it: schedule=onecurve.{name}()")
        try:
            float(self.lr_factor(0, 2))
        except Exception as error:
            raise OnecurveError(
                "Job: schedule must be onecurve.cosine(…), linear(…), constant(…), or a function factor(step, steps) "
                f"that returns a number; calling it raised {type(error).__name__}: {error}"
            ) from None

    def _check_callables(self) -> None:
        if not self.optimizers:
            raise OnecurveError(
                "Job: optimizer is an empty dict; add an entry for each child of the model that is trained, for "
                "example {'generator': onecurve.AdamW(…)}"
            )
        optimizers = (("optimizer", factory) for factory in self.optimizers.values())
        for name, value in (("model", self.model), ("loss", self.loss), ("data", self.data), *optimizers):
            if isinstance(value, nn.Module) and name == "model":
                raise OnecurveError(
                    "Job: model must be a callable that builds the module, got a module; use model=MyModel or "
                    "model=lambda: MyModel(…)"
                )
            if not callable(value):
                kind = f"{type(value).__module__}.{type(value).__name__}".removeprefix("builtins.")
                raise OnecurveError(f"Job: {name} must be a callable, got {kind}; use {_CALLABLE_EXAMPLES[name]}")


_TRACKERS = ("tensorboard", "mlflow", "wandb")
_CALLABLE_EXAMPLES = {
    "model": "model=MyModel or model=lambda: MyModel(width=64)",
    "loss": "loss=onecurve.loss.cross_entropy or your own loss(output, target)",
    "data": "data=lambda: MyDataset()",
    "optimizer": "optimizer=onecurve.AdamW(lr=3e-4)",
}
