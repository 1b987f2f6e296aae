"""What every prepared run begins with: this rank's place, plan, data and the model's blueprint."""

import math
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from onecurve.apply.base_part import BasePart
from onecurve.apply.process_mesh import make_mesh
from onecurve.checkpoint.loader import Checkpoint
from onecurve.checkpoint.manifest import Standing
from onecurve.checkpoint.pretrained import load_weights
from onecurve.checkpoint.saver import SaveEvent
from onecurve.checkpoint.weights import refuse_unsupported_dtypes, save_weights
from onecurve.data.loader import Batch
from onecurve.data.training_data import TrainingData, open_data
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan
from onecurve.describe.plan_validation import validate
from onecurve.device.cores import pin_to_cores
from onecurve.device.device import loader_workers, local_cluster, local_device
from onecurve.device.local_tensor import LocalTensor
from onecurve.device.world import World
from onecurve.job.job import Job
from onecurve.model.deferred import defer_init
from onecurve.planner.completion import complete
from onecurve.planner.job_profile import optimizer_tensors
from onecurve.planner.plan_choice import choose_plan
from onecurve.predict.memory import refuse_if_too_large, state_bytes
from onecurve.runs.folder import RunLock
from onecurve.runtime.assembly import aliases, refuse_unmatched_groups
from onecurve.runtime.checkpoints import Checkpoints, Resumed
from onecurve.runtime.fingerprint import fingerprint
from onecurve.train.step_report import StepReport
from onecurve.train.update import OptimizerUpdate


class Ready(ABC):
    """A job on this rank, up to the point where someone has to run the model. Iterate for batches."""

    def __init__(self, job: Job, plan: Plan | str = "auto", out: str | Path | None = None, fresh: bool = False) -> None:
        self.job = job
        self.world = World.from_environment() or World()
        self.device = local_device(self.world.local_rank)  # first: what asks the device then asks this rank's own
        cluster = local_cluster()
        self.plan = choose_plan(plan, job.global_batch, self.world.size)
        validate(self.plan, job.global_batch, cluster)
        pin_to_cores(self.world.local_rank, self.world.local_size, self.plan.threads)
        self._refuse_other_world()
        self._data = open_data(job)
        self.steps = self._data.steps
        self._open_loaders(self._data, loader_workers(cluster, self.world.local_size))
        self.plan = complete(self.plan, job, self._data)
        self.world.join(self.device)
        self._deferred = defer_init(job.model, job.seed)
        refuse_unmatched_groups(job, self._deferred)
        self.warning = self._deferred.warning
        self._identity = fingerprint(job, self._deferred.module, self._data)
        self._aliases = aliases(self._deferred.module)
        self.parameters = sum(parameter.numel() for parameter in self._deferred.module.parameters())
        needed = state_bytes(
            self._deferred.parameter_bytes, self._deferred.trainable_bytes, optimizer_tensors(job), self.plan
        )
        refuse_if_too_large(needed, self.plan, cluster)
        self._mesh = make_mesh(self.plan.mesh, self.world.rank, self.device.kind)
        self._waited = self._saving = 0.0
        self._checkpoints = self._open_checkpoints(out, fresh)
        self._origin = Standing(0, 0)
        self.resumed = ""
        """From what, for a person."""
        self.tell: Callable[[SaveEvent], None] = _print
        self.lock: RunLock | None = None
        self._readable: StepReport | None = None
        self._wants_save = False

    def _open_loaders(self, data: TrainingData, workers: int) -> None:
        """Before the rank has threads: loader processes are forked (see Batches)."""
        self._batches = data.batches(self.plan, self.plan.mesh.data_rank(self.world.rank), workers)

    def _hold(self, part: BasePart) -> None:
        """What the rank came to hold of the model."""
        self._held = part
        self.model = part.module
        refuse_unsupported_dtypes(part.saved)

    def _open_checkpoints(self, out: str | Path | None, fresh: bool) -> Checkpoints | None:
        self._fresh = fresh
        if out is None or self.job.save is None:
            return None
        return Checkpoints(self.job.save, Path(out), self.world, self.device, self.plan, self._identity)

    def _begin(self) -> None:
        """From a checkpoint, from given weights, or from what the constructor drew. Called when everything else is
        known to be well: to begin anew removes what is there."""
        resumed = None
        if self._checkpoints is not None and self._fresh:
            self._checkpoints.begin_anew()
        elif self._checkpoints is not None:
            resumed = self._checkpoints.resume(self._lasting)
        if resumed is not None:
            self._take_state(resumed)
            self._batches.start(resumed.standing.step, resumed.standing.position)
            self._origin, self.resumed = resumed.standing, resumed.text
        elif self.job.weights is not None:
            left_out = load_weights(Path(self.job.weights), self._held.saved, self._aliases)
            self.warning = " ".join(filter(None, (self.warning, left_out)))
        self._held.drop_gathered()

    def _lasting(self) -> list[LocalTensor]:
        """The model's state_dict, and parameters that it leaves out (a frozen part may have been given once)."""
        saved = self._held.saved
        names = {local_tensor.name for local_tensor in saved}
        return [*saved, *(local_tensor for local_tensor in self._held.parameters if local_tensor.name not in names)]

    def fill(self, checkpoint: Checkpoint) -> None:
        """Take the model of a checkpoint, to look at it rather than to go on."""
        checkpoint.load(self._lasting(), self.plan.mesh, self.world.rank)
        self._held.drop_gathered()

    def _take_state(self, resumed: Resumed) -> None:
        for update in self._updates.values():
            update.load_state(resumed.states)

    @property
    @abstractmethod
    def _updates(self) -> Mapping[str, OptimizerUpdate]: ...

    def _standing(self, step: int) -> Standing:
        return Standing(step, self._origin.position + (step - self.first_step) * self.job.global_batch)

    @property
    def last_loss(self) -> float:
        """Of the step before the first."""
        return math.nan if self._origin.loss is None else self._origin.loss

    @property
    def first_step(self) -> int:
        """Where this run goes on: steps done before it."""
        return self._origin.step

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._checkpoints is not None:
            self._checkpoints.wait()
            self._tell_news()
        if self._checkpoints is not None:
            self._checkpoints.close()
        self.world.leave()
        if self.lock is not None:
            self.lock.release()

    def __iter__(self) -> Iterator[Batch]:
        """This rank's share of each step, once."""
        batches = iter(self._batches)
        while True:
            begin = time.perf_counter()
            batch = next(batches, None)
            self._waited = time.perf_counter() - begin
            if batch is None:
                self.checkpoint(self.steps)
                return
            yield batch
            self._after(batch.step + 1)

    def _after(self, step: int) -> None:
        if self._checkpoints is None:
            return
        report = self._readable  # on accelerators of the step before, which may have asked for a save already made
        asked = report is not None and report.step >= self._checkpoints.begun_step and report.outcome.save
        if asked or self._wants_save or self._checkpoints.due(step):
            self.checkpoint(step)
        self._tell_news()

    def checkpoint(self, step: int) -> None:
        """Save where the training stands after `step` steps, in the background; all ranks must call it. Does nothing
        where the run has no folder."""
        if self._checkpoints is None:
            return
        begin = time.perf_counter()
        self._wants_save = False
        self._held.sync_buffers()
        kept = {name: state for update in self._updates.values() for name, state in update.state().items()}
        self._checkpoints.save(self._lasting, kept, self._standing(step))
        self._saving += time.perf_counter() - begin

    def finish(self, step: int) -> None:
        """Save where the training ended, and wait until that is done."""
        self.checkpoint(step)
        if self._checkpoints is not None:
            self._checkpoints.wait()
            self._tell_news()

    def _tell_news(self) -> None:
        assert self._checkpoints is not None
        for take_events in self._checkpoints.take_events():
            self.tell(take_events)

    def save(self, path: str | Path) -> None:
        """The weights as one safetensors file; all ranks must call it, rank 0 writes."""
        self._held.sync_buffers()
        save_weights(self._held.saved, Path(path), writer=self.world.rank == 0)

    def _refuse_other_world(self) -> None:
        if self.plan.mesh.size != self.world.size:
            raise OnecurveError(
                f"plan {self.plan}: it needs {self.plan.mesh.size} ranks, this world has {self.world.size}; start as "
                "many ranks as the plan has, or change the plan"
            )


def _print(take_events: SaveEvent) -> None:
    """For those who keep the loop."""
    if take_events.event == "warning" and os.environ.get("RANK", "0") == "0":
        print(f"onecurve: {take_events.text}", file=sys.stderr, flush=True)
