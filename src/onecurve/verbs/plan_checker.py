"""Trains one-device references, and compares the training under each plan with them."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from onecurve.apply.process_mesh import ProcessMesh, make_mesh
from onecurve.data.order import round_bounds
from onecurve.data.training_data import TrainingData
from onecurve.describe.convert import from_plain, to_plain
from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Plan, Precision
from onecurve.describe.resolved_plan import ResolvedPlan
from onecurve.describe.verdict import Verdict
from onecurve.device.collectives import all_gather_text, barrier
from onecurve.device.device import Device
from onecurve.device.world import World
from onecurve.job.batch import MicroBatch
from onecurve.job.job import Job
from onecurve.job.objective import objective_of
from onecurve.model.deferred import defer_init
from onecurve.model.materialize import Materializer
from onecurve.model.recorder import build_real
from onecurve.prove.comparison import Difference, compare_step, first_or_worst, store_step
from onecurve.prove.dropout import NoDropout, disable_dropout
from onecurve.prove.loss_curve import MAX_CURVE_EXCESS, PERTURBED_RUNS, curve_excess, perturb
from onecurve.prove.reference import train_on_one_device
from onecurve.prove.upcast_mode import UpcastMode
from onecurve.runtime.assembly import Assembly, assemble, refuse_unmatched_groups


class Variant(NamedTuple):
    """What a reference depends on: with batch norm on the rounds and, if its statistics are local, on the shares."""

    rounds: int
    shares: tuple[tuple[int, int], ...] | None


class PlanChecker:
    """One per rank. All ranks call its methods together."""

    def __init__(
        self, job: Job, data: TrainingData, device: Device, world: World, steps: int, precision: Precision, folder: Path
    ) -> None:
        self._job, self._data, self._device, self._world = job, data, device, world
        self.steps = steps
        self._exact = precision == "fp64"
        self._dtype = torch.float64 if self._exact else torch.float32
        self._folder = folder
        self._no_dropout = NoDropout()
        self._upcast = UpcastMode()
        self._draws_random_numbers = False
        self._dropout_modules = 0
        self._meshes: dict[Mesh, ProcessMesh] = {}
        deferred = defer_init(job.model, job.seed)
        refuse_unmatched_groups(job, deferred)
        self._has_batch_norm = any(isinstance(module, _BatchNorm) for module in deferred.module.modules())

    def variants(self, plans: Sequence[Plan]) -> list[Variant]:
        """Return the references that these plans are compared with."""
        return sorted({self._variant(plan) for plan in plans}, key=str)

    def train_references(self, plans: Sequence[Plan]) -> None:
        """Train the references into the folder. The ranks share the work."""
        runs = range(1 if self._exact else 1 + PERTURBED_RUNS)
        tasks = [(variant, run) for variant in self.variants(plans) for run in runs]
        for number, (variant, run) in enumerate(tasks):
            if number % self._world.size == self._world.rank:
                self._train_reference(variant, run)
        barrier()

    def check(self, resolved: ResolvedPlan) -> Verdict:
        """Train under a plan and compare. Every rank of the world must call this, and gets the same verdict."""
        plan = resolved.plan
        if plan.mesh not in self._meshes:
            self._meshes[plan.mesh] = make_mesh(plan.mesh, self._world.rank, self._device.kind)
        mesh = self._meshes[plan.mesh]
        own = self._difference(resolved, mesh) if mesh.member else None
        texts = [text for text in all_gather_text(json.dumps(to_plain(own)) if own else "") if text]
        difference = first_or_worst([from_plain(Difference, json.loads(text), "verdict") for text in texts])
        holds = difference.holds if self._exact else difference.size <= MAX_CURVE_EXCESS
        return Verdict(str(plan), holds, difference.size, difference.step + 1, difference.tensor)

    def notes(self, verdicts: Sequence[Verdict]) -> list[str]:
        """Return what a reader of the verdicts should know. Every rank must call this."""
        draws = any(all_gather_text("draws" if self._draws_random_numbers else ""))
        notes = []
        if self._has_batch_norm:
            notes.append("batch norm sees one round at a time, so the one-device run uses as many rounds as the plan")
        if self._dropout_modules or self._no_dropout.triggered:
            notes.append("dropout was switched off: its masks differ between plans by design")
        if self._upcast.triggered:
            notes.append(
                "what the model casts to float32 was computed in float64, so that rounding does not hide a difference"
            )
        if draws:
            notes.append(
                "the model draws random numbers in forward, besides dropout; they differ between plans, as do results"
            )
        if self._exact and any(not v.holds and 1e-9 < v.size < 1e-5 for v in verdicts):
            notes.append(
                "differences near 1e-7 hint at a float32 cast inside the model or loss ('.float()', float32 constants)"
            )
        return notes

    @contextmanager
    def _without_expected_differences(self) -> Iterator[None]:
        """Switch off dropout and, in float64, casts to float32, in the one-device run too."""
        with self._no_dropout, self._upcast if self._exact else nullcontext():
            yield

    def _variant(self, plan: Plan) -> Variant:
        if not self._has_batch_norm:
            return Variant(1, None)
        shares = tuple(plan.share(rank) for rank in range(plan.mesh.data))
        return Variant(plan.rounds, shares if self._job.batch_norm == "local" else None)

    def _reference_folder(self, variant: Variant) -> Path:
        shares = "-".join(str(end) for _, end in variant.shares or ())
        return self._folder / f"rounds-{variant.rounds}-{shares}"

    def _train_reference(self, variant: Variant, run: int) -> None:
        module = build_real(self._job.model, self._job.seed)
        Materializer(None, self._device.torch_device, self._dtype).materialize(module)
        if isinstance(self._job.loss, nn.Module):
            self._job.loss.to(self._device.torch_device, self._dtype)
        self._dropout_modules += disable_dropout(module)
        if run:
            perturb(module, seed=run)
        curve: list[float] = []

        def after_step(step: int, loss: float) -> None:
            curve.append(loss)
            if self._exact:
                store_step(module, step, loss, self._reference_folder(variant))

        trainable = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
        with self._without_expected_differences():
            train_on_one_device(
                module,
                self._job.optimizers[""](trainable),
                lambda step: self._job.lr_factor(step, self._data.steps),
                self._job.clip,
                self._batches(variant),
                self._loss,
                after_step,
            )
        folder = self._reference_folder(variant)
        folder.mkdir(exist_ok=True)
        (folder / f"curve-{run}.json").write_text(json.dumps(curve))

    def _batches(self, variant: Variant) -> Iterator[list[list[MicroBatch]]]:
        size = self._job.global_batch
        for step in range(self.steps):
            bounds = [round_bounds(step * size, size, variant.rounds, number) for number in range(variant.rounds)]
            yield [
                [self._micro(begin + first, begin + last) for first, last in variant.shares or ((0, end - begin),)]
                for begin, end in bounds
            ]

    def _micro(self, begin: int, end: int) -> MicroBatch:
        return self._data.micro(begin, end).to(self._device.torch_device, self._dtype)

    def _loss(self, module: nn.Module, micro: MicroBatch) -> tuple[Tensor, Tensor | float]:
        before = torch.get_rng_state()
        weighted = objective_of(self._job.loss)(micro.forward(module), micro)
        self._draws_random_numbers = self._draws_random_numbers or not torch.equal(before, torch.get_rng_state())
        return weighted.sum, weighted.count

    def _difference(self, resolved: ResolvedPlan, mesh: ProcessMesh) -> Difference:
        plan = resolved.plan
        deferred = defer_init(self._job.model, self._job.seed)
        self._dropout_modules += disable_dropout(deferred.module)
        with self._without_expected_differences():
            assembly = assemble(self._job, resolved, mesh, self._device, self._data, deferred)
            return self._exact_difference(assembly, plan) if self._exact else self._curve_difference(assembly, plan)

    def _exact_difference(self, assembly: Assembly, plan: Plan) -> Difference:
        differences = []
        folder, lr = self._reference_folder(self._variant(plan)), max(assembly.trainer.update.base_rates)
        for step, loss in self._losses(assembly, plan):
            assembly.part.sync_buffers()
            part = assembly.part
            differences.append(first_or_worst(compare_step(part.state, part.trainable, step, loss, lr, folder)))
        return first_or_worst(differences)

    def _curve_difference(self, assembly: Assembly, plan: Plan) -> Difference:
        folder = self._reference_folder(self._variant(plan))
        reference, *perturbed = [
            json.loads((folder / f"curve-{run}.json").read_text()) for run in range(1 + PERTURBED_RUNS)
        ]
        curve = [loss for _, loss in self._losses(assembly, plan)]
        return Difference(len(curve) - 1, "loss curve", curve_excess(curve, reference, perturbed))

    def _losses(self, assembly: Assembly, plan: Plan) -> Iterator[tuple[int, float]]:
        data_rank = plan.mesh.data_rank(self._world.rank)
        for batch in self._data.batches(plan, data_rank, workers=0):
            if batch.step > self.steps:
                return
            yield batch.step - 1, assembly.trainer.step(batch.step, batch.rounds).loss
