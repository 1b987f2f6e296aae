"""oc.prepare(job, backward="mine"): for two optimizers, reinforcement learning and the like.

with oc.prepare(job(), backward="mine") as run:
    for batch in run:
        for micro in batch.rounds:
            run.backward(oc.Weighted(my_loss(run.model, micro).sum(), micro.samples))
        run.update("generator")
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from torch import Tensor, nn

from onecurve.apply.manual_backward import ManualBackwardPart
from onecurve.data.loader import Batch
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan
from onecurve.describe.seed import mix
from onecurve.job.job import Job
from onecurve.job.weighted import Weighted
from onecurve.measure.blocks import find_blocks
from onecurve.runtime.ready import Ready
from onecurve.train.manual_trainer import ManualTrainer
from onecurve.train.step_report import StepReport
from onecurve.train.update import OptimizerUpdate


class KeptRun(Ready):
    """A training on this rank, made ready, whose forward and backward passes are the user's."""

    def __init__(self, job: Job, plan: Plan | str = "auto", out: str | Path | None = None) -> None:
        super().__init__(job, plan, out)
        _refuse(job, self.plan)
        module = self._deferred.module
        children = {name: find_blocks(_child(module, name)) for name in job.optimizers}
        part = ManualBackwardPart(self._deferred, self.plan, self._mesh, self.device, children, job.batch_norm)
        self._hold(part)
        self._part = part
        self._newest: StepReport | None = None
        self._trainer = ManualTrainer(job, part, self.steps, self.plan)
        self._begin()
        if self._checkpoints is not None:
            self._trainer.save_requested = self._checkpoints.overdue
        if self.world.rank == 0:
            print(
                f"onecurve: {self.plan}, backward='mine': that every plan computes the same is now up to your loop; "
                "onecurve check cannot prove it",
                file=sys.stderr,
                flush=True,
            )

    def __iter__(self) -> Iterator[Batch]:
        """This rank's share of each step, on its device, once. The generators are seeded by (seed, step, rank)."""
        data_rank = self._mesh.data_rank
        for batch in super().__iter__():
            self._trainer.step = batch.step
            self.device.seed(mix(self.job.seed, batch.step, data_rank, 3))
            yield Batch(batch.step, [self._part.place(micro) for micro in batch.rounds])

    def backward(self, weighted: Weighted | Tensor) -> None:
        """Add the gradients of a loss: `Weighted(sum, count)`, or one value per sample. All ranks must call it as
        often. The first backward after an update begins anew: gradients left over by then are cleared."""
        self._trainer.backward(weighted)

    def update(self, name: str = "") -> StepReport:
        """Sum the gradients of one of the optimizers over the ranks, divide by the count of all losses since the last
        update, clip, update. All ranks must call it. The report's loss is the mean over all ranks."""
        report = self._trainer.update(name)
        self._readable, self._newest = self._newest if self._trainer.updates[name].skips_on_device else report, report
        return report

    @property
    def _updates(self) -> Mapping[str, OptimizerUpdate]:
        return self._trainer.updates


def refuse_manual_backward(job: Job, what: str) -> None:
    """For whom a job needs a step of its own."""
    if job.manual_backward:
        why = "has several optimizers" if len(job.optimizers) > 1 or "" not in job.optimizers else "has no loss"
        raise OnecurveError(
            f'{what}: it {why}, so its backward pass is written by you, with onecurve.prepare(job, backward="mine"), '
            "and started as a script: python train.py, or torchrun --nproc-per-node 2 train.py"
        )


def _refuse(job: Job, plan: Plan) -> None:
    for axis in ("tensor", "pipeline"):
        if plan.mesh.degrees[axis] > 1:
            raise OnecurveError(
                f"plan {plan}: backward='mine' runs on the axes replicate and shard; leave {axis!r} out"
            )
    if plan.precision == "fp16":
        raise OnecurveError(f"plan {plan}: backward='mine' has no loss scaling; use bf16 or fp32")
    if plan.compress != "none":
        raise OnecurveError(f"plan {plan}: backward='mine' does not compress gradients; leave compress out")
    if job.evaluate is not None:
        raise OnecurveError("Job: evaluate cannot be used with backward='mine'; evaluate in your own loop")


def _child(module: nn.Module, name: str) -> nn.Module:
    try:
        return module.get_submodule(name)
    except AttributeError:
        children = ", ".join(each for each, _ in module.named_children()) or "none"
        raise OnecurveError(f"optimizer: the model has no child {name!r} (it has: {children})") from None
