"""The one-device runs that plans are compared with, trained once for all plans and stored in a folder."""

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils import _pytree as pytree

from onecurve.data.order import round_bounds
from onecurve.data.training_data import TrainingData
from onecurve.describe.changed_buffers import ChangedBuffers
from onecurve.describe.convert import from_plain, to_plain
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan
from onecurve.device.collectives import barrier
from onecurve.device.device import Device
from onecurve.device.gradient_hooks import take_gradient_hooks
from onecurve.device.local_tensor import local_tensor_of
from onecurve.device.world import World
from onecurve.job.batch import MicroBatch
from onecurve.job.embedding import tables_of
from onecurve.job.evaluation_metrics import metrics_of
from onecurve.job.job import Job
from onecurve.job.loss_parameters import refuse_other_parameters
from onecurve.job.loss_trial import TRIAL_SAMPLES, LossTrial
from onecurve.job.metric_trial import refuse_unsplittable_metrics
from onecurve.job.objective import objective_of, weigh
from onecurve.job.optimizer_factory import build_optimizer
from onecurve.job.scalar_form import REFUSED
from onecurve.job.whole_batch import WholeBatchLoss, splittable
from onecurve.model.fake_mode import refuse_fake_tensors
from onecurve.model.materialize import Materializer
from onecurve.model.recorder import build_real
from onecurve.model.unchanged import buffers_kept, functions_kept, unchanged
from onecurve.prove.comparison import Limits, average_name, compare_module, limits_of, store_step
from onecurve.prove.expected_differences import ExpectedDifferences
from onecurve.prove.loss_curve import PERTURBATION, PERTURBED_RUNS, perturb
from onecurve.prove.moved_weights import apply_moves, store_moves
from onecurve.prove.reference import train_on_one_device
from onecurve.verbs.reference_tables import TABLES, ReferenceOptimizer, ReferenceTable, add_tables, store_ids
from onecurve.verbs.start_weights import StartWeights

_EXACT_PERTURBATION = 1e-15
"""Relative perturbation of the weights that shows how much a model amplifies rounding errors in float64."""

_MAX_EXACT_RUNS = 4
"""Perturbed float64 runs that are trained before a plan counts as different. One of them is enough if it holds."""

BuildModel = Callable[[Callable[[], nn.Module], int], nn.Module]
"""Builds a real module from the user's constructor and a seed."""


class Variant(NamedTuple):
    """What a reference depends on: the rounds, with batch norm and other buffers that forward changes; and the shares,
    if these buffers, or an auxiliary loss, depend on the samples of one micro-batch."""

    rounds: int
    shares: tuple[tuple[int, int], ...] | None


@dataclass(frozen=True)
class ReferenceRun:
    """What a training on one device leaves besides its tensors."""

    losses: tuple[float, ...]
    differences: tuple[dict[str, float], ...]
    """The differences of a perturbed float64 run from the reference after each step, by tensor; otherwise empty."""
    seconds: float
    without_gradient: tuple[str, ...] = ()
    """Parameters whose gradient is missing or zero also in the step from moved weights."""
    obstacle: str = ""
    """Why there is no step from moved weights although there should be one; then it is not among the losses."""


class References:
    """Trains one-device runs and answers what they showed. All ranks call `train` together."""

    def __init__(
        self,
        job: Job,
        data: TrainingData,
        device: Device,
        world: World,
        steps: int,
        exact: bool,
        has_batch_norm: bool,
        changed_buffers: ChangedBuffers,
        folder: Path,
        expected: ExpectedDifferences,
        build: BuildModel = build_real,
        start: StartWeights | None = None,
    ) -> None:
        """`exact`: in float64, with every tensor stored; otherwise in float32, with several perturbed loss curves. The
        last of several float64 steps begins with moved weights. `start`: None for the weights of the constructor."""
        self._build_model, self._start = build, start
        self._job, self._data, self._device, self._world = job, data, device, world
        self._steps, self._exact, self._folder, self._expected = steps, exact, folder, expected
        self.moves_after = steps - 2 if exact and steps > 1 else None
        """The step after which the weights are moved, counted from 0; None if they are not."""
        self._objective = objective_of(job.loss)
        self._dtype = torch.float64 if exact else torch.float32
        self._has_batch_norm, self._changed_buffers = has_batch_norm, changed_buffers

    def variants(self, plans: Sequence[Plan]) -> list[Variant]:
        """Return the references that these plans are compared with."""
        return sorted({self.variant(plan) for plan in plans}, key=str)

    def variant(self, plan: Plan) -> Variant:
        """Return the reference that a plan is compared with."""
        has_local_norm = self._has_batch_norm and self._job.batch_norm == "local"
        if self._job.has_local_loss or has_local_norm or self._changed_buffers.data_dependent:
            return Variant(plan.rounds, tuple(plan.share(rank) for rank in range(plan.mesh.data)))
        depends_on_rounds = self._has_batch_norm or self._changed_buffers.data_independent
        return Variant(plan.rounds if depends_on_rounds else 1, None)

    def train(self, plans: Sequence[Plan]) -> None:
        """Train what is not in the folder yet: references, then perturbed runs. The ranks share the work."""
        variants = self.variants(plans)
        perturbed = range(1, 2 if self._exact else 1 + PERTURBED_RUNS)
        for runs in (range(1), perturbed):
            for number, (variant, run) in enumerate((variant, run) for variant in variants for run in runs):
                if number % self._world.size == self._world.rank and not self._file(variant, run).exists():
                    self._train(variant, run)
            barrier()

    def train_alone(self, plans: Sequence[Plan]) -> None:
        """Train the same on this rank, without the others."""
        for variant in self.variants(plans):
            for run in range(2 if self._exact else 1 + PERTURBED_RUNS):
                self._train(variant, run)

    def curves(self, variant: Variant) -> list[tuple[float, ...]]:
        """Return the losses of the reference and of the perturbed runs."""
        return [self.run(variant, run).losses for run in range(1 + PERTURBED_RUNS)]

    def train_more(self, variant: Variant) -> None:
        """Train further perturbed float64 runs on the first rank, which make the limits surer. All ranks call this."""
        for run in range(2, 1 + _MAX_EXACT_RUNS):
            if self._world.rank == 0 and not self._file(variant, run).exists():
                self._train(variant, run)
        barrier()

    def limits(self, variant: Variant) -> list[Limits]:
        """Return the largest differences that count as equal after each step, from all perturbed runs so far."""
        runs = [run for run in range(1, 1 + _MAX_EXACT_RUNS) if self._file(variant, run).exists()]
        steps = zip(*(self.run(variant, run).differences for run in runs), strict=True)
        return [limits_of(spreads) for spreads in accumulate((reduce(_larger, step) for step in steps), _larger)]

    def run(self, variant: Variant, run: int) -> ReferenceRun:
        """Return what run 0, the reference, or a perturbed run showed."""
        return from_plain(ReferenceRun, json.loads(self._file(variant, run).read_text()), "reference")

    def folder(self, variant: Variant) -> Path:
        """The folder with the tensors of a reference."""
        shares = "-".join(str(end) for _, end in variant.shares or ())
        return self._folder / f"rounds-{variant.rounds}-{shares}"

    def _file(self, variant: Variant, run: int) -> Path:
        return self.folder(variant) / f"run-{run}.json"

    def _train(self, variant: Variant, run: int) -> None:
        with functions_kept(*self._functions):
            self._train_once(variant, run)

    @property
    def _functions(self) -> list[Any]:
        """The functions of the user, which may keep a state."""
        return [self._job.model, self._job.loss, *self._job.metrics.values()]

    def _train_once(self, variant: Variant, run: int) -> None:
        began = time.monotonic()
        module = self._build()
        hooks = take_gradient_hooks(module)
        tables = self._add_tables(module, variant)
        if run:
            perturb(module, run, _EXACT_PERTURBATION if self._exact else PERTURBATION)
        if not run or self._objective.form is None:
            self._refuse_unsplittable(module)
        trainable = [
            (name, parameter)
            for name, parameter in module.named_parameters()
            if parameter.requires_grad and not name.startswith(f"{TABLES}.")
        ]
        optimizer = build_optimizer(self._job.optimizers[""], trainable)
        lr = max(group["lr"] for group in optimizer.param_groups)
        folder = self.folder(variant)
        folder.mkdir(exist_ok=True)
        if tables:
            store_ids(tables, folder)
            row_optimizers = {name: table.optimizer for name, table in tables_of(module).items()}
            optimizer = ReferenceOptimizer(optimizer, tables, row_optimizers)
        rows = {id(table.rows) for table in tables.values()}
        losses: list[float] = []
        differences: list[dict[str, float]] = []
        averaged = self._averaged(module)

        def after_step(step: int, loss: float) -> None:
            losses.append(loss)
            averages = {}
            if averaged is not None:
                averaged.update_parameters(module)
                averages = {average_name(name): each for name, each in averaged.module.named_parameters()}
            if self._exact and run:
                differences.append(compare_module(module, step, loss, lr, folder, averages))
            elif self._exact:
                store_step(module, step, loss, folder, averages)
            if step == self.moves_after:
                self._move(module, folder, run)

        obstacle = ""
        try:
            with refuse_fake_tensors(), self._expected.removed():
                train_on_one_device(
                    module,
                    optimizer,
                    lambda step: self._job.lr_factor(step, self._data.steps),
                    self._job.clip,
                    self._batches(variant, len(self.run(variant, 0).losses) if run else self._steps),
                    self._loss,
                    after_step,
                    lambda step, parameter: self._job.staleness.applies(step + 1) and id(parameter) in rows,
                    (self._embed, self._joint_loss) if isinstance(self._job.loss, WholeBatchLoss) else None,
                    hooks,
                )
        except Exception as error:
            if run or self.moves_after is None or len(losses) <= self.moves_after:
                raise
            # The job itself need not have such weights: a distribution may refuse its parameters.
            obstacle = f"it raises {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        has_moved = not run and self.moves_after is not None
        if has_moved and not obstacle and not _is_finite(module, losses[-1]):
            obstacle = "its loss or a gradient is not finite"
        result = ReferenceRun(
            losses=tuple(losses[: self._steps - 1] if obstacle else losses),
            differences=tuple(differences),
            seconds=time.monotonic() - began,
            without_gradient=tuple(_without_gradient(module)) if has_moved and not obstacle else (),
            obstacle=obstacle,
        )
        self._file(variant, run).write_text(json.dumps(to_plain(result)))  # last: it says that the run is complete

    def _move(self, module: nn.Module, folder: Path, run: int) -> None:
        """Move the weights; the reference decides how."""
        if not run:
            store_moves(module, self._job.seed, folder, without=TABLES)
        apply_moves((local_tensor_of(name, each, True) for name, each in module.named_parameters()), folder)

    def _averaged(self, module: nn.Module) -> AveragedModel | None:
        """torch's own averages, to compare with."""
        if self._job.ema is None:
            return None
        return AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(self._job.ema))  # type: ignore[no-untyped-call]

    def _build(self) -> nn.Module:
        module = self._build_model(self._job.model, self._job.seed)
        Materializer(None, self._device.torch_device, self._dtype).materialize(module)
        if isinstance(self._job.loss, nn.Module):
            self._job.loss.to(self._device.torch_device, self._dtype)
        self._expected.disable_dropout(module)
        if self._start is not None:
            self._start.load_module(module)
        return module

    def _add_tables(self, module: nn.Module, variant: Variant) -> dict[str, ReferenceTable]:
        """Make the model's embedding tables ordinary parameters."""
        batches = self._batches(variant, self._steps)
        micro_batches = (micro for rounds in batches for micros in rounds for micro in micros)

        def forward(module: nn.Module, micro: MicroBatch) -> None:
            with torch.no_grad():
                micro.forward(module)

        with refuse_fake_tensors(), self._expected.removed(), buffers_kept(module.eval()):
            return add_tables(
                module,
                self._job.seed,
                self._dtype,
                self._device.torch_device,
                self._job.staleness,
                micro_batches,
                forward,
            )

    def _refuse_unsplittable(self, module: nn.Module) -> None:
        """Refuse, once for all plans, a loss or a metric that every plan would refuse."""

        def infer(micro: MicroBatch) -> Any:
            return micro.infer(module)

        def read(begin: int, end: int, copies: int) -> MicroBatch:
            return self._data.trial_micro(begin, end, copies).to(self._device.torch_device, self._dtype)

        with refuse_fake_tensors(), self._expected.removed(), unchanged(module.eval(), *self._functions):
            kept_state = partial(functions_kept, *self._functions, model=module)
            trial = LossTrial(infer=infer, read=read, on_form=self._objective.set_form, kept_state=kept_state)
            first = read(0, min(self._job.global_batch, TRIAL_SAMPLES), 1)
            with trial.kept_state():
                refuse_other_parameters(self._job.loss, infer(first), first, module.parameters())
            trial.refuse_unsplittable(splittable(self._job.loss), first)
            refuse_unsplittable_metrics(trial, metrics_of(self._job.metrics), first)

    def _batches(self, variant: Variant, steps: int) -> Iterator[list[list[MicroBatch]]]:
        size = self._job.global_batch
        for step in range(steps):
            bounds = [round_bounds(step * size, size, variant.rounds, number) for number in range(variant.rounds)]
            yield [
                [self._micro(begin + first, begin + last) for first, last in variant.shares or ((0, end - begin),)]
                for begin, end in bounds
            ]

    def _micro(self, begin: int, end: int) -> MicroBatch:
        return self._data.micro(begin, end).to(self._device.torch_device, self._dtype)

    def _loss(self, module: nn.Module, micro: MicroBatch) -> tuple[Tensor, Tensor | float]:
        with self._expected.watch_draws():
            weighted = self._objective(micro.forward(module), micro)
        if float(weighted.count) == REFUSED:
            raise OnecurveError(self._objective.refusal)
        return weighted.sum, weighted.count

    def _embed(self, module: nn.Module, micro: MicroBatch) -> Any:
        assert isinstance(self._job.loss, WholeBatchLoss)
        with self._expected.watch_draws():
            return self._job.loss.embeddings(micro.forward(module))

    def _joint_loss(self, embeddings: Sequence[Any], micros: Sequence[MicroBatch]) -> tuple[Tensor, Tensor | float]:
        assert isinstance(self._job.loss, WholeBatchLoss)
        samples = sum(micro.samples for micro in micros)
        value = self._job.loss.of_embeddings(_together(embeddings), _together([micro.target for micro in micros]))
        weighted = weigh(value, samples)
        return weighted.sum * (samples / weighted.count), samples


def _without_gradient(module: nn.Module) -> Iterator[str]:
    for name, parameter in module.named_parameters():
        is_compared = parameter.requires_grad and parameter.numel() and not name.startswith(f"{TABLES}.")
        if is_compared and (parameter.grad is None or not parameter.grad.any()):
            yield name


def _is_finite(module: nn.Module, loss: float) -> bool:
    gradients = (parameter.grad for parameter in module.parameters() if parameter.grad is not None)
    return math.isfinite(loss) and all(bool(gradient.isfinite().all()) for gradient in gradients)


def _together(parts: Sequence[Any]) -> Any:
    """Values of several micro-batches; those without samples are the same in all."""
    return pytree.tree_map(lambda *each: torch.cat(each) if each[0].dim() else each[0], *parts)


def _larger(one: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    """The larger difference of each tensor."""
    return {name: max(one.get(name, 0.0), size) for name, size in other.items()}
