"""Which ranks recompute whose steps in an audit, and for which jobs there is none."""

import platform
import socket
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch

from onecurve.apply.base_part import BasePart
from onecurve.apply.process_mesh import ProcessMesh
from onecurve.checkpoint.saver import SaveEvent
from onecurve.data.loader import TrainingBatches
from onecurve.describe.errors import OnecurveError
from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Plan
from onecurve.device.collectives import all_gather_text
from onecurve.device.device import Device
from onecurve.job.embedding import tables_of
from onecurve.job.job import Job
from onecurve.job.whole_batch import WholeBatchLoss
from onecurve.runtime.run_settings import RunSettings
from onecurve.train.audit import Audit, AuditEvent, AuditRanks
from onecurve.train.trainer import Trainer


def start_audit(
    job: Job,
    plan: Plan,
    mesh: ProcessMesh,
    device: Device,
    part: BasePart,
    trainer: object,
    batches: TrainingBatches,
    settings: RunSettings,
) -> None:
    """Let the trainer audit steps, if the job wants that. All ranks must call it, before the first step."""
    if job.audit is None:
        return
    if not isinstance(trainer, Trainer):
        raise OnecurveError("Job: audit is not possible with backward='mine': onecurve cannot compute its steps again")
    if tables_of(part.module):
        raise OnecurveError("Job: audit is not possible with embedding tables: their rows are not computed again")
    machines = all_gather_text(f"{machine(device)}\n{socket.gethostname()}")
    hosts = [text.rpartition("\n")[2] for text in machines]
    of_data_ranks = machines_of_data_ranks(plan.mesh, [text.rpartition("\n")[0] for text in machines])
    alone = isinstance(job.loss, WholeBatchLoss) or batches.partner is None
    data_rank = plan.mesh.data_rank(mesh.rank)
    ranks = AuditRanks(
        data_rank=data_rank,
        partners=range(plan.mesh.data) if alone else partners(of_data_ranks),
        data_ranks=plan.mesh.ranks_along(mesh.rank, "replicate", "shard"),
        hosts=hosts,
    )
    if batches.partner is not None:
        batches.set_partner(ranks.partner)
    on_first = mesh.rank == 0

    def say(event: AuditEvent, text: str) -> None:
        if on_first:
            settings.on_event(SaveEvent(event, text))

    trainer.audit = Audit(part, job.loss, job.audit, ranks, plan.precision != "fp32", say)  # type: ignore[arg-type]
    who = "another rank" if ranks.partner != data_rank else "the same rank"
    say(
        "audit",
        f"one in {job.audit} steps is computed a second time by {who}, which adds about {100 / job.audit:.2g} % to "
        "the time",
    )


def partners(machines: Sequence[str]) -> list[int]:
    """For each data-parallel rank the one whose share it recomputes: the next one with the same kind of machine.

    Only equal machines compute the same bits. A rank whose machine is like no other recomputes its own share.
    """
    found = list(range(len(machines)))
    for kind in set(machines):
        equal = [rank for rank, machine in enumerate(machines) if machine == kind]
        for rank, following in zip(equal, [*equal[1:], equal[0]], strict=True):
            found[rank] = following
    return found


def machines_of_data_ranks(mesh: Mesh, machines: Sequence[str]) -> list[str]:
    """The machines that compute the share of each data-parallel rank, as one text."""
    texts: list[list[str]] = [[] for _ in range(mesh.data)]
    for rank, machine_of_rank in enumerate(machines):
        texts[mesh.data_rank(rank)].append(machine_of_rank)
    return ["\n".join(each) for each in texts]


def machine(device: Device) -> str:
    """What decides which bits an operation computes on this rank."""
    if device.asynchronous:
        properties = torch.get_device_module(device.torch_device).get_device_properties(device.torch_device)
        name = getattr(properties, "name", device.kind)
    else:
        name = f"{_processor()}, {torch.backends.cpu.get_cpu_capability()}"
    return f"{name}, {torch.get_num_threads()} threads, torch {torch.__version__}"


@cache
def _processor() -> str:
    """The name of the CPU, as Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
