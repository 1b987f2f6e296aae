"""One of the ranks that benchmarks/checkpoint.py starts: saves and loads by onecurve and DCP, plain copies, in turn."""

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
"""Of a stack of transformer-like blocks: 12 tensors each, together 256 MB with Adam's two tensors per parameter."""


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
    """All ranks begin together; what the slowest took."""
    dist.barrier()
    begin = time.perf_counter()
    act()
    taken = torch.tensor([time.perf_counter() - begin])
    dist.all_reduce(taken, dist.ReduceOp.MAX)
    return float(taken)


def stock_state(run: oc.prepare) -> dict[str, Tensor]:
    """The same tensors as DCP wants them: distributed ones."""
    found: dict[str, Tensor] = {}
    states = run.trainer.update.state()
    for local_tensor in run._held.saved:
        whole = local_tensor.whole.detach()
        found[local_tensor.name] = whole
        for key, value in states[local_tensor.name].items():
            like = isinstance(value, Tensor) and value.dim()
            found[f"{local_tensor.name}.{key}"] = (
                DTensor.from_local(value, whole.device_mesh, whole.placements, shape=whole.shape, stride=whole.stride())
                if like and isinstance(whole, DTensor)
                else value
            )
    return found


def main(out: str, pairs: str) -> None:
    torch.set_num_threads(1)
    folder = ""
    seconds: dict[str, list[float]] = {}

    def note(name: str, taken: float) -> None:
        seconds.setdefault(name, []).append(taken)

    place = tempfile.mkdtemp(prefix="onecurve-benchmark-")
    with oc.prepare(job(), plan="shard2 mb2", out=place) as run:
        folder = all_gather_text(place)[0]
        run._checkpoints._store._folder = Path(folder) / "ours"
        group = dist.new_group(backend="gloo")
        for batch in run:
            run.step(batch)
            if batch.step == 1:
                break
        state = stock_state(run)
        sources = [t.to_local() if isinstance(t, DTensor) else t for t in state.values()]
        sources = [source for source in sources if source.numel()]
        copies = [torch.zeros_like(source) for source in sources]
        for number in range(int(pairs)):
            run._checkpoints.saved_step = -1
            note("stall", timed(lambda number=number: run.checkpoint(number + 2)))
            run._checkpoints.wait()
            note("copy", timed(lambda: torch._foreach_copy_(copies, sources)))
            stock = Path(folder) / f"dcp-{number}"
            waiting: list[Any] = []
            note("dcp_stall", timed(lambda s=stock, w=waiting: w.append(save_stock(state, s, group))))
            waiting[0].result()
            store = LocalStore(Path(folder) / "ours")
            name = store.names()[-1]
            note("load", timed(partial(load, run, store, name)))
            note("dcp_load", timed(lambda s=stock: dcp.load(state, checkpoint_id=s, process_group=group)))
    if run.world.rank == 0:
        nbytes = sum(source.nbytes for source in sources)
        Path(out).write_text(json.dumps({"seconds": seconds, "bytes_per_rank": nbytes}))


def load(run: oc.prepare, store: LocalStore, name: str) -> None:
    Checkpoint(store, name).load(run._held.saved, run.plan.mesh, run.world.rank)


def save_stock(state: dict[str, Tensor], place: Path, group: dist.ProcessGroup) -> Any:
    return dcp.async_save(state, checkpoint_id=place, process_group=group)


if __name__ == "__main__":
    main(*sys.argv[1:])
