"""The work of a check on one rank: its references, and each plan held against them."""

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
from onecurve.prove.comparison import Difference, compare_step, first_and_worst, keep_step
from onecurve.prove.dropout import NoDropout, switch_off
from onecurve.prove.loss_curve import ALLOWED, PERTURBED_RUNS, excess, perturb
from onecurve.prove.reference import train_on_one_device
from onecurve.prove.upcast_mode import UpcastMode
from onecurve.runtime.assembly import Assembly, assemble, refuse_unmatched_groups


class Variant(NamedTuple):
    """What a reference depends on: nothing, unless batch norm sees the rounds, and where it is local the shares too."""

    rounds: int
    shares: tuple[tuple[int, int], ...] | None


class PlanChecker:
    def __init__(
        self, job: Job, data: TrainingData, device: Device, world: World, steps: int, precision: Precision, folder: Path
    ) -> None:
        self._job, self._data, self._device, self._world = job, data, device, world
        self.steps = steps
        self._exact = precision == "fp64"
        self._dtype = torch.float64 if self._exact else torch.float32
        self._folder = folder
        self._no_dropout = NoDropout()
        self._wide = UpcastMode()
        self._draws = False
        self._dropped = 0
        self._meshes: dict[Mesh, ProcessMesh] = {}
        deferred = defer_init(job.model, job.seed)
        refuse_unmatched_groups(job, deferred)
        self._has_batch_norm = any(isinstance(module, _BatchNorm) for module in deferred.module.modules())

    def variants(self, plans: Sequence[Plan]) -> list[Variant]:
        return sorted({self._variant(plan) for plan in plans}, key=str)

    def train_references(self, plans: Sequence[Plan]) -> None:
        """The ranks share the work; afterwards all of it lies in the folder."""
        runs = range(1 if self._exact else 1 + PERTURBED_RUNS)
        tasks = [(variant, run) for variant in self.variants(plans) for run in runs]
        for number, (variant, run) in enumerate(tasks):
            if number % self._world.size == self._world.rank:
                self._train_reference(variant, run)
        barrier()

    def hold(self, plan: Plan) -> Verdict:
        """Train by the plan and compare; every rank of the world must call this, and gets the same verdict."""
        if plan.mesh not in self._meshes:
            self._meshes[plan.mesh] = make_mesh(plan.mesh, self._world.rank, self._device.kind)
        mesh = self._meshes[plan.mesh]
        found = self._difference(plan, mesh) if mesh.member else None
        texts = [text for text in all_gather_text(json.dumps(to_plain(found)) if found else "") if text]
        found = first_and_worst([from_plain(Difference, json.loads(text), "verdict") for text in texts])
        holds = found.holds if self._exact else found.size <= ALLOWED
        return Verdict(str(plan), holds, found.size, found.step + 1, found.tensor)

    def notes(self, verdicts: Sequence[Verdict]) -> list[str]:
        """What a reader of the verdicts should know. Every rank must call this."""
        draws = any(all_gather_text("draws" if self._draws else ""))
        notes = []
        if self._has_batch_norm:
            notes.append("batch norm sees a round at a time, so the one device takes as many rounds as the plan")
        if self._dropped or self._no_dropout.found:
            notes.append("dropout was switched off: its masks differ between plans by nature")
        if self._wide.found:
            notes.append("what the model computes in float32 was computed in float64, to leave rounding out")
        if draws:
            notes.append(
                "the model draws random numbers in its forward, besides dropout: plans draw others, so they differ"
            )
        if self._exact and any(not v.holds and 1e-9 < v.size < 1e-5 for v in verdicts):
            notes.append(
                "differences near 1e-7 hint at a float32 cast inside the model or loss ('.float()', float32 constants)"
            )
        return notes

    @contextmanager
    def _exactly(self) -> Iterator[None]:
        """What plans would differ by through no fault of theirs is left out, of the one device's run too."""
        with self._no_dropout, self._wide if self._exact else nullcontext():
            yield

    def _variant(self, plan: Plan) -> Variant:
        if not self._has_batch_norm:
            return Variant(1, None)
        shares = tuple(plan.share(rank) for rank in range(plan.mesh.data))
        return Variant(plan.rounds, shares if self._job.batch_norm == "local" else None)

    def _place(self, variant: Variant) -> Path:
        shares = "-".join(str(end) for _, end in variant.shares or ())
        return self._folder / f"rounds-{variant.rounds}-{shares}"

    def _train_reference(self, variant: Variant, run: int) -> None:
        module = build_real(self._job.model, self._job.seed)
        Materializer(None, self._device.torch_device, self._dtype).materialize(module)
        if isinstance(self._job.loss, nn.Module):
            self._job.loss.to(self._device.torch_device, self._dtype)
        self._dropped += switch_off(module)
        if run:
            perturb(module, seed=run)
        curve: list[float] = []

        def watch(step: int, loss: float) -> None:
            curve.append(loss)
            if self._exact:
                keep_step(module, step, loss, self._place(variant))

        trained = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
        with self._exactly():
            train_on_one_device(
                module,
                self._job.optimizers[""](trained),
                lambda step: self._job.rate(step, self._data.steps),
                self._job.clip,
                self._batches(variant),
                self._measure,
                watch,
            )
        place = self._place(variant)
        place.mkdir(exist_ok=True)
        (place / f"curve-{run}.json").write_text(json.dumps(curve))

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

    def _measure(self, module: nn.Module, micro: MicroBatch) -> tuple[Tensor, Tensor | float]:
        before = torch.get_rng_state()
        weighted = objective_of(self._job.loss)(micro.forward(module), micro)
        self._draws = self._draws or not torch.equal(before, torch.get_rng_state())
        return weighted.sum, weighted.count

    def _difference(self, plan: Plan, mesh: ProcessMesh) -> Difference:
        deferred = defer_init(self._job.model, self._job.seed)
        self._dropped += switch_off(deferred.module)
        with self._exactly():
            assembly = assemble(self._job, plan, mesh, self._device, self._data, deferred)
            return self._exact_difference(assembly, plan) if self._exact else self._curve_difference(assembly, plan)

    def _exact_difference(self, assembly: Assembly, plan: Plan) -> Difference:
        found = []
        lr = max(assembly.trainer.update.base_rates)
        for step, loss in self._losses(assembly, plan):
            assembly.part.sync_buffers()
            found.append(
                first_and_worst(
                    compare_step(
                        assembly.part.state, assembly.part.trained, step, loss, lr, self._place(self._variant(plan))
                    )
                )
            )
        return first_and_worst(found)

    def _curve_difference(self, assembly: Assembly, plan: Plan) -> Difference:
        place = self._place(self._variant(plan))
        reference, *perturbed = [
            json.loads((place / f"curve-{run}.json").read_text()) for run in range(1 + PERTURBED_RUNS)
        ]
        curve = [loss for _, loss in self._losses(assembly, plan)]
        return Difference(len(curve) - 1, "loss curve", excess(curve, reference, perturbed))

    def _losses(self, assembly: Assembly, plan: Plan) -> Iterator[tuple[int, float]]:
        data_rank = plan.mesh.data_rank(self._world.rank)
        for batch in self._data.batches(plan, data_rank, workers=0):
            if batch.step == self.steps:
                return
            yield batch.step, assembly.trainer.step(batch.step, batch.rounds).loss
