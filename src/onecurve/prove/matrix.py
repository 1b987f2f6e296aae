"""Lists the plans that a check tries.

Every mesh of the supported axes, with gradient accumulation, both ways to reduce gradients, uneven shares, and the
options that change where or when something is computed but not the result.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Plan, Precision, Reduce, Schedule, split_evenly

_ROUNDS_AND_REDUCE: tuple[tuple[int, Reduce], ...] = (
    (1, "step"),
    (2, "step"),
    (2, "round"),
    (4, "step"),
    (4, "round"),
)


def plan_matrix(global_batch: int, ranks: int, precision: Precision, places_tables: bool = False) -> list[Plan]:
    """Return plans for 1, 2, 4, … up to `ranks` ranks, leaving out those that cannot split the global batch.

    `places_tables`: the model has embedding tables in the ranks, whose placements are tried too.
    """
    plans = []
    for mesh in _meshes(ranks):
        variants = _ROUNDS_AND_REDUCE if mesh.data > 1 else tuple((rounds, "step") for rounds in (1, 2, 4))
        for rounds, reduce in variants:
            round_size, remainder = divmod(global_batch, rounds)
            if not remainder and round_size >= mesh.data:
                shares = split_evenly(round_size, mesh.data)
                plans.append(Plan(mesh, micro_batch=shares, rounds=rounds, precision=precision, reduce=reduce))
        plans += [
            Plan(mesh, micro_batch=shares, rounds=2, precision=precision)
            for shares in _uneven_shares(global_batch, mesh)
        ]
        plans += _with_options(global_batch, mesh, precision, recomputes=mesh.size == min(2, ranks))
        if places_tables and mesh.data > 1:
            plans += [replace(plan, tables={"*": "replicated"}) for plan in plans if plan.mesh == mesh]
    for mesh in _pipeline_meshes(ranks):
        plans += _pipeline_plans(global_batch, mesh, precision)
    return plans


def _with_options(global_batch: int, mesh: Mesh, precision: Precision, recomputes: bool) -> Iterator[Plan]:
    """Plans with options that change where tensors are stored or when they are computed, but not their values.

    `recomputes`: with recomputation too, which is the same on any number of ranks.
    """
    if global_batch < mesh.data:
        return
    plain = Plan(mesh, micro_batch=split_evenly(global_batch, mesh.data), precision=precision)
    if mesh.shard > 1:
        yield replace(plain, sharding="zero2")
    if mesh.tensor > 1:
        yield replace(plain, sequence=True)
    if recomputes:
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


def _pipeline_meshes(ranks: int) -> Iterator[Mesh]:
    world = 2
    while world <= ranks:
        yield Mesh(pipeline=world)
        if world > 2:
            yield Mesh(pipeline=2, shard=world // 2)
            yield Mesh(pipeline=2, tensor=world // 2)
        if world > 4:
            yield Mesh(pipeline=2, shard=2, tensor=world // 4)
        world *= 2


def _pipeline_plans(global_batch: int, mesh: Mesh, precision: Precision) -> Iterator[Plan]:
    """Each schedule with one round per pipeline rank; 1f1b also with two."""
    for schedule in get_args(Schedule):
        for rounds in (mesh.pipeline, 2 * mesh.pipeline) if schedule == "1f1b" else (mesh.pipeline,):
            round_size, remainder = divmod(global_batch, rounds)
            if remainder or round_size < mesh.data:
                continue
            shares = split_evenly(round_size, mesh.data)
            plan = Plan(mesh, micro_batch=shares, rounds=rounds, precision=precision, schedule=schedule)
            yield replace(plan, sharding="zero2") if schedule == "zero-bubble" and mesh.shard > 1 else plan


def _uneven_shares(global_batch: int, mesh: Mesh) -> Iterator[tuple[int, ...]]:
    """Shares of about 3 : 1 for each pair of data-parallel ranks, over two rounds."""
    round_size, remainder = divmod(global_batch, 2)
    if mesh.data > 1 and not remainder and round_size >= 2 * mesh.data:
        pairs = split_evenly(round_size, mesh.data // 2)
        yield tuple(share for pair in pairs for share in (pair - max(1, pair // 4), max(1, pair // 4)))
