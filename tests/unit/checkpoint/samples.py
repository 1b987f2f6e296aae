"""Small checkpoints, made by as many savers as they have ranks, one after the other in this process."""

import torch
from torch import nn

from onecurve.checkpoint.hashed_json import dump_hashed
from onecurve.checkpoint.loader import Checkpoint
from onecurve.checkpoint.manifest import Root, Standing, data_file, manifest_file
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
    """As a sharded plan holds them: rows dealt like torch.chunk does, what has no rows on every rank."""
    place = mesh.coordinates(rank)
    copy = {"copy": place["replicate"], "copies": mesh.replicate}
    found = []
    for name, shape in SHAPES.items():
        whole = value(name, seed)
        if not shape or mesh.shard == 1:
            box = Box(tuple(slice(0, n) for n in shape), tuple(slice(0, n) for n in shape))
            local = nn.Parameter(whole.clone())
            found.append(LocalTensor(name, local, local, shape, (box,), place["shard"] == 0, None, **copy))
            continue
        rows = -(-shape[0] // mesh.shard)
        begin, end = min(place["shard"] * rows, shape[0]), min((place["shard"] + 1) * rows, shape[0])
        rest = tuple(slice(0, n) for n in shape[1:])
        box = Box((slice(begin, end), *rest), (slice(0, end - begin), *rest))
        local = nn.Parameter(whole[begin:end].clone())
        found.append(LocalTensor(name, local, local, shape, (box,), True, None, everywhere=False, **copy))
    return found


def kept(held: list[LocalTensor]) -> dict[str, dict[str, object]]:
    """Of an optimizer: a tensor like the parameter, a number, a tensor of one element."""
    return {
        local_tensor.name: {"exp_avg": local_tensor.local.detach() * 2, "step": torch.tensor(3.0), "count": 4}
        for local_tensor in held
    }


def save(store, mesh: Mesh, step: int = 8, seed: int = 1, token: str = TOKEN) -> str:
    name = name_of(step, token)
    store.begin(name)
    for rank in range(mesh.size):
        held = local_tensors(mesh, rank, seed)
        snapshot = Snapshot(held, kept(held), local_device(0))
        snapshot.take(kept(held))
        manifest, parts = snapshot.file(token, rank)
        if manifest.size:
            store.write(name, data_file(rank), parts)
        store.write(name, manifest_file(rank), [dump_hashed(manifest)])
    store.commit(name, dump_hashed(Root(token, mesh.size, Standing(step, step), Plan(mesh), JOB)))
    return name


def load(store, name: str, mesh: Mesh, seed: int = 1) -> None:
    """Into every rank of another mesh; raises where it is not to the last bit what was saved."""
    for rank in range(mesh.size):
        held, states = read(store, name, mesh, rank)
        for found, right in zip(held, local_tensors(mesh, rank, seed), strict=True):
            assert torch.equal(found.local, right.local), found.name
            if found.local.numel():
                state = states[found.name]
                assert state["count"] == 4
                assert state["step"] == 3.0
                if found.shape:
                    assert torch.equal(state["exp_avg"], right.local * 2), found.name


def read(store, name: str, mesh: Mesh, rank: int = 0):
    held = [
        LocalTensor(p.name, p.local, nn.Parameter(torch.full_like(p.local, torch.nan)), p.shape, p.boxes, p.lead, None)
        for p in local_tensors(mesh, rank, 0)
    ]
    return held, Checkpoint(store, name).load(held, mesh, rank)


def nothing(name: str) -> LocalTensor:
    return absent_tensor(name, SHAPES[name], torch.float32, torch.device("cpu"), None)


__all__ = ["kept", "load", "local_tensors", "nothing", "read", "save", "value"]
