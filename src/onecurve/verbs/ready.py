"""What every prepared run begins with: this rank's place, plan, data and the model's blueprint."""

import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from onecurve.apply.blueprint import draw
from onecurve.apply.held import Held
from onecurve.apply.mesh import make_mesh
from onecurve.checkpoint.weights import refuse_unsaveable, save_weights
from onecurve.data.loader import Batch
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan
from onecurve.describe.validity import validate
from onecurve.device.cores import settle_on_cores
from onecurve.device.device import here, loader_workers, local_device
from onecurve.device.world import World
from onecurve.job.job import Job
from onecurve.predict.memory import refuse_if_too_large, state_bytes
from onecurve.verbs.assembly import refuse_unmatched_groups
from onecurve.verbs.choice import choose_plan
from onecurve.verbs.completion import complete
from onecurve.verbs.data import Data, open_data
from onecurve.verbs.profile import optimizer_tensors


class Ready:
    """A job on this rank, up to the point where someone has to run the model. Iterate for batches."""

    def __init__(self, job: Job, plan: Plan | str = "auto") -> None:
        self.job = job
        self.world = World.from_environment() or World()
        self.device = local_device(self.world.local_rank)  # first: what asks the device then asks this rank's own
        cluster = here()
        self.plan = choose_plan(plan, job.global_batch, self.world.size)
        validate(self.plan, job.global_batch, cluster)
        settle_on_cores(self.world.local_rank, self.world.local_size, self.plan.threads)
        self._refuse_other_world()
        self._data = open_data(job)
        self.steps = self._data.steps
        self._open_loaders(self._data, loader_workers(cluster, self.world.local_size))
        self.plan = complete(self.plan, job, self._data)
        self.world.join(self.device)
        self._blueprint = draw(job.model, job.seed)
        refuse_unmatched_groups(job, self._blueprint)
        self.warning = self._blueprint.warning
        self.parameters = sum(parameter.numel() for parameter in self._blueprint.module.parameters())
        needed = state_bytes(
            self._blueprint.parameter_bytes, self._blueprint.trained_bytes, optimizer_tensors(job), self.plan
        )
        refuse_if_too_large(needed, self.plan, cluster)
        self._mesh = make_mesh(self.plan.mesh, self.world.rank, self.device.kind)
        self._waited = 0.0

    def _open_loaders(self, data: Data, workers: int) -> None:
        """Before the rank has threads: loader processes are forked (see Batches)."""
        self._batches = data.batches(self.plan, self.plan.mesh.data_rank(self.world.rank), workers)

    def _hold(self, part: Held) -> None:
        """What the rank came to hold of the model."""
        self._held = part
        self.model = part.module
        refuse_unsaveable(part.saved)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.world.leave()

    def __iter__(self) -> Iterator[Batch]:
        """This rank's share of each step, once."""
        while True:
            begin = time.perf_counter()
            batch = next(self._batches, None)
            self._waited = time.perf_counter() - begin
            if batch is None:
                return
            yield batch

    def save(self, path: str | Path) -> None:
        """The weights as one safetensors file; all ranks must call it, rank 0 writes."""
        self._held.settle()
        save_weights(self._held.saved, Path(path), writer=self.world.rank == 0)

    def _refuse_other_world(self) -> None:
        if self.plan.mesh.size != self.world.size:
            raise OnecurveError(
                f"plan {self.plan}: it needs {self.plan.mesh.size} ranks, this world has {self.world.size}; start as "
                "many ranks as the plan has, or change the plan"
            )
