"""Small checkpoints, saved and loaded by all ranks of a mesh one after the other in this process."""

import torch
from torch import nn

from onecurve.checkpoint.hashed_json import dump_hashed
from onecurve.checkpoint.loader import Checkpoint
from onecurve.checkpoint.manifest import Root, SavePoint, data_file, manifest_file
from onecurve.checkpoint.snapshot import Snapshot
from onecurve.checkpoint.store import name_of
from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Plan
from onecurve.device.device import local_device
from onecurve.device.local_tensor import Box, LocalTensor, absent_tensor

SHAPES = {"embed.weight": (7, 3), "block.0.weight": (5, 4, 2), "scale": (), "bias": (6,)}
TOKEN = "0123456789abcdef"
JOB = {"steps": "8"}


def value(name: str, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed * 100 + sorted(SHAPES).index(name))
    return torch.randn(SHAPES[name], generator=generator)


def local_tensors(mesh: Mesh, rank: int, seed: int) -> list[LocalTensor]:
    """The tensors of one rank: rows sharded as torch.chunk does, scalars replicated."""
    coordinates = mesh.coordinates(rank)
    shard = coordinates["shard"]
    tensors = []
    for name, shape in SHAPES.items():
        full = value(name, seed)
        sharded = bool(shape) and mesh.shard > 1
        if sharded:
            rows = -(-shape[0] // mesh.shard)
            begin, end = min(shard * rows, shape[0]), min((shard + 1) * rows, shape[0])
            rest = tuple(slice(0, size) for size in shape[1:])
            box = Box((slice(begin, end), *rest), (slice(0, end - begin), *rest))
            local = nn.Parameter(full[begin:end].clone())
        else:
            box = Box(tuple(slice(0, size) for size in shape), tuple(slice(0, size) for size in shape))
            local = nn.Parameter(full.clone())
        tensors.append(
            LocalTensor(
                name=name,
                registered=local,
                local=local,
                shape=shape,
                boxes=(box,),
                is_first_holder=sharded or shard == 0,
                group=None,
                is_replicated_everywhere=not sharded,
                replica=coordinates["replicate"],
                replicas=mesh.replicate,
            )
        )
    return tensors


def optimizer_state(tensors: list[LocalTensor]) -> dict[str, dict[str, object]]:
    """For each parameter a tensor of its shape, a zero-dimensional tensor and a number."""
    return {
        tensor.name: {"exp_avg": tensor.local.detach() * 2, "step": torch.tensor(3.0), "count": 4} for tensor in tensors
    }


def save(store, mesh: Mesh, step: int = 8, seed: int = 1, token: str = TOKEN) -> str:
    name = name_of(step, token)
    store.begin(name)
    for rank in range(mesh.size):
        tensors = local_tensors(mesh, rank, seed)
        snapshot = Snapshot(tensors, optimizer_state(tensors), local_device(0))
        snapshot.take(optimizer_state(tensors))
        manifest, parts = snapshot.file(token, rank)
        if manifest.size:
            store.write(name, data_file(rank), parts)
        store.write(name, manifest_file(rank), [dump_hashed(manifest)])
    store.commit(name, dump_hashed(Root(token, mesh.size, SavePoint(step), Plan(mesh), JOB)))
    return name


def load(store, name: str, mesh: Mesh, seed: int = 1) -> None:
    """Load into every rank of another mesh, and assert that every bit equals what was saved."""
    for rank in range(mesh.size):
        tensors, states = read(store, name, mesh, rank)
        for loaded, expected in zip(tensors, local_tensors(mesh, rank, seed), strict=True):
            assert torch.equal(loaded.local, expected.local), loaded.name
            if loaded.local.numel():
                state = states[loaded.name]
                assert state["count"] == 4
                assert state["step"] == 3.0
                if loaded.shape:
                    assert torch.equal(state["exp_avg"], expected.local * 2), loaded.name


def read(store, name: str, mesh: Mesh, rank: int = 0):
    """Load into tensors of NaN; return them and the optimizer state."""
    tensors = [
        LocalTensor(
            name=tensor.name,
            registered=tensor.local,
            local=nn.Parameter(torch.full_like(tensor.local, torch.nan)),
            shape=tensor.shape,
            boxes=tensor.boxes,
            is_first_holder=tensor.is_first_holder,
            group=None,
        )
        for tensor in local_tensors(mesh, rank, 0)
    ]
    return tensors, Checkpoint(store, name).load(tensors, mesh, rank)


def absent(name: str) -> LocalTensor:
    return absent_tensor(name, SHAPES[name], torch.float32, torch.device("cpu"), None)


__all__ = ["absent", "load", "local_tensors", "optimizer_state", "read", "save", "value"]
