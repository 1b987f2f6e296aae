"""Which plans a check tries: every mesh of the axes that are built, with rounds, both reductions, uneven shares, and
the forms that keep the maths."""

from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Plan, Precision, Reduce, Schedule, split_evenly

_ROUNDS: tuple[tuple[int, Reduce], ...] = ((1, "step"), (2, "step"), (2, "round"), (4, "step"), (4, "round"))


def matrix(global_batch: int, ranks: int, precision: Precision) -> list[Plan]:
    """Plans for worlds of 1, 2, 4, … up to `ranks`, as far as the global batch can be split so."""
    plans = []
    for mesh in _meshes(ranks):
        variants = _ROUNDS if mesh.data > 1 else tuple((rounds, "step") for rounds in (1, 2, 4))
        for rounds, reduce in variants:
            size, rest = divmod(global_batch, rounds)
            if not rest and size >= mesh.data:
                plans.append(Plan(mesh, split_evenly(size, mesh.data), rounds, precision, reduce))
        plans += [Plan(mesh, shares, 2, precision, "step") for shares in _uneven(global_batch, mesh)]
        plans += _forms(global_batch, mesh, precision)
    for mesh in _pipelines(ranks):
        plans += _scheduled(global_batch, mesh, precision)
    return plans


def _forms(global_batch: int, mesh: Mesh, precision: Precision) -> Iterator[Plan]:
    """What changes where numbers are kept or when they are computed, not what they are."""
    if global_batch < mesh.data:
        return
    plain = Plan(mesh, split_evenly(global_batch, mesh.data), 1, precision)
    if mesh.shard > 1:
        yield replace(plain, sharding="zero2")
    if mesh.tensor > 1:
        yield replace(plain, sequence=True)
    if mesh.size == 2:
        yield replace(plain, recompute="full")
        yield replace(plain, recompute="selective")


def _meshes(ranks: int) -> Iterator[Mesh]:
    yield Mesh()
    world = 2
    while world <= ranks:
        yield Mesh(replicate=world)
        yield Mesh(shard=world)
        if world > 2:
            yield Mesh(replicate=2, shard=world // 2)
        yield Mesh(tensor=world)
        if world > 2:
            yield Mesh(shard=2, tensor=world // 2)
        world *= 2


def _pipelines(ranks: int) -> Iterator[Mesh]:
    world = 2
    while world <= ranks:
        yield Mesh(pipeline=world)
        if world > 2:
            yield Mesh(pipeline=2, shard=world // 2)
            yield Mesh(pipeline=2, tensor=world // 2)
        if world > 4:
            yield Mesh(pipeline=2, shard=2, tensor=world // 4)
        world *= 2


def _scheduled(global_batch: int, mesh: Mesh, precision: Precision) -> Iterator[Plan]:
    """Each schedule, with as many rounds as the stages need, and once with twice as many."""
    for schedule in get_args(Schedule):
        for rounds in (mesh.pipeline, 2 * mesh.pipeline) if schedule == "1f1b" else (mesh.pipeline,):
            size, rest = divmod(global_batch, rounds)
            if rest or size < mesh.data:
                continue
            plan = Plan(mesh, split_evenly(size, mesh.data), rounds, precision, schedule=schedule)
            yield replace(plan, sharding="zero2") if schedule == "zero-bubble" and mesh.shard > 1 else plan


def _uneven(global_batch: int, mesh: Mesh) -> Iterator[tuple[int, ...]]:
    """Shares of 3 : 1, over two rounds."""
    size, rest = divmod(global_batch, 2)
    if mesh.data > 1 and not rest and size >= 2 * mesh.data:
        pairs = split_evenly(size, mesh.data // 2)
        yield tuple(share for pair in pairs for share in (pair - max(1, pair // 4), max(1, pair // 4)))
