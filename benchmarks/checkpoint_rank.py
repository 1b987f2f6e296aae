"""One rank of benchmarks/checkpoint.py: takes turns with saves and loads by onecurve and DCP and with plain copies."""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import onecurve as oc
from onecurve.checkpoint.loader import Checkpoint
from onecurve.checkpoint.local_store import LocalStore
from onecurve.device.collectives import all_gather_text

WIDTH, DEPTH = 592, 12
"""Features and number of blocks of the model: 12 parameters per block, 256 MB with Adam's two tensors per parameter."""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.o(self.q(x) + self.k(x) + self.v(x)) + self.up(self.norm(x))


class Samples:
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.full((WIDTH,), index / 64), torch.zeros(WIDTH)


def job() -> oc.Job:
    return oc.Job(
        model=lambda: nn.Sequential(*(Block() for _ in range(DEPTH))),
        loss=oc.loss.mse,
        data=Samples,
        optimizer=oc.AdamW(lr=1e-5),
        global_batch=4,
        steps=1000,
        save=oc.Save(every=10**6, last=1),
    )


def timed(act: Callable[[], Any]) -> float:
    """Start `act` on all ranks together; return the seconds of the slowest rank."""
    dist.barrier()
    begin = time.perf_counter()
    act()
    seconds = torch.tensor([time.perf_counter() - begin])
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return float(seconds)


def dcp_state(run: oc.prepare) -> dict[str, Tensor]:
    """Return the parameters and the optimizer state as DCP needs them, with sharded tensors as DTensors."""
    state: dict[str, Tensor] = {}
    states = run._components.trainer.update.state()
    for local_tensor in run._part.state_dict_tensors:
        parameter = local_tensor.registered.detach()
        state[local_tensor.name] = parameter
        for key, value in states[local_tensor.name].items():
            has_elements = isinstance(value, Tensor) and value.dim()
            state[f"{local_tensor.name}.{key}"] = (
                DTensor.from_local(
                    value,
                    parameter.device_mesh,
                    parameter.placements,
                    shape=parameter.shape,
                    stride=parameter.stride(),
                )
                if has_elements and isinstance(parameter, DTensor)
                else value
            )
    return state


def main(out: str, pairs: str) -> None:
    torch.set_num_threads(1)
    seconds: dict[str, list[float]] = {}

    def record(name: str, measured: float) -> None:
        seconds.setdefault(name, []).append(measured)

    own_folder = tempfile.mkdtemp(prefix="onecurve-benchmark-")
    with oc.prepare(job(), plan="shard2 mb2", out=own_folder) as run:
        folder = Path(all_gather_text(own_folder)[0])
        run._checkpoints._store._folder = folder / "onecurve"
        group = dist.new_group(backend="gloo")
        for batch in run:
            run.step(batch)
            if batch.step == 2:
                break
        state = dcp_state(run)
        sources = [t.to_local() if isinstance(t, DTensor) else t for t in state.values()]
        sources = [source for source in sources if source.numel()]
        copies = [torch.zeros_like(source) for source in sources]
        for number in range(int(pairs)):
            run._steps_done = number + 2  # every save is of another step
            record("stall", timed(run._save_checkpoint))
            run._checkpoints.wait()
            record("copy", timed(lambda: torch._foreach_copy_(copies, sources)))
            dcp_folder = folder / f"dcp-{number}"
            pending: list[Any] = []
            record("dcp_stall", timed(lambda f=dcp_folder, p=pending: p.append(save_with_dcp(state, f, group))))
            pending[0].result()
            store = LocalStore(folder / "onecurve")
            name = store.names()[-1]
            record("load", timed(partial(load, run, store, name)))
            record("dcp_load", timed(lambda f=dcp_folder: dcp.load(state, checkpoint_id=f, process_group=group)))
    if run.world.rank == 0:
        nbytes = sum(source.nbytes for source in sources)
        Path(out).write_text(json.dumps({"seconds": seconds, "bytes_per_rank": nbytes}))


def load(run: oc.prepare, store: LocalStore, name: str) -> None:
    Checkpoint(store, name).load(run._part.state_dict_tensors, run.plan.mesh, run.world.rank)


def save_with_dcp(state: dict[str, Tensor], folder: Path, group: dist.ProcessGroup) -> Any:
    return dcp.async_save(state, checkpoint_id=folder, process_group=group)


if __name__ == "__main__":
    main(*sys.argv[1:])
