"""Checkpoints load from any mesh into any other, and damaged or absurd files are detected."""

import random
import resource
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import sample_checkpoints as samples
from onecurve.checkpoint.chunk import split_into_chunks
from onecurve.checkpoint.fsspec_store import FsspecStore
from onecurve.checkpoint.hashed_json import CorruptedError
from onecurve.checkpoint.local_store import LocalStore
from onecurve.checkpoint.manifest import Chunk, Manifest, StoredTensor
from onecurve.checkpoint.manifest_search_order import manifest_search_order
from onecurve.checkpoint.retention import Retention
from onecurve.checkpoint.store import name_of
from onecurve.describe.mesh import Mesh

MESHES = [Mesh(), Mesh(replicate=2), Mesh(shard=2), Mesh(shard=4), Mesh(replicate=2, shard=3), Mesh(shard=9)]


@pytest.fixture(params=["local", "memory"])
def store(request, tmp_path):
    if request.param == "local":
        return LocalStore(tmp_path / "checkpoints")
    return FsspecStore(f"memory://{tmp_path.name}-{time.monotonic_ns()}")


@pytest.mark.parametrize("saved", MESHES, ids=str)
def test_loads_from_any_mesh_into_any_other(saved: Mesh, store) -> None:
    name = samples.save(store, saved)
    assert store.names() == [name]
    for mesh in MESHES:
        samples.load(store, name, mesh)


def test_replicas_divide_the_chunks(tmp_path) -> None:
    name = samples.save(LocalStore(tmp_path), Mesh(replicate=2))
    assert all((tmp_path / name / f"rank-{rank}.safetensors").stat().st_size for rank in range(2))


@given(st.lists(st.integers(0, 9), max_size=4), st.integers(1, 40))
def test_chunks_are_within_the_limit_and_cover_every_element_once(sizes: list[int], limit: int) -> None:
    counts = torch.zeros(sizes, dtype=torch.int64)
    for offsets, lengths in split_into_chunks(sizes, limit):
        chunk = counts[tuple(slice(o, o + n) for o, n in zip(offsets, lengths, strict=True))]
        assert 1 <= chunk.numel() <= limit
        chunk += 1
    assert (counts == 1).all()


@pytest.mark.parametrize("flips", [600, pytest.param(10_000, marks=pytest.mark.slow)])
def test_any_flipped_bit_is_detected(flips: int, tmp_path) -> None:
    store = LocalStore(tmp_path)
    name = samples.save(store, Mesh(replicate=2, shard=2))
    files = sorted((tmp_path / name).iterdir())
    sizes = [file.stat().st_size for file in files]
    rng = random.Random(0)
    undetected = []
    for number in range(flips):
        # Half of the flips go to the files in turn, so that small files get their share.
        file = files[number % len(files)] if number % 2 else rng.choices(files, sizes)[0]
        content = file.read_bytes()
        bit = rng.randrange(len(content) * 8)
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        file.write_bytes(changed)
        try:
            samples.load(store, name, Mesh())
            undetected.append((file.name, bit))
        except CorruptedError:
            pass
        file.write_bytes(content)
    assert not undetected
    samples.load(store, name, Mesh())


def test_files_of_two_saves_do_not_mix(tmp_path) -> None:
    store = LocalStore(tmp_path)
    names = [samples.save(store, Mesh(shard=2), seed=seed, token=f"{seed:016x}") for seed in (1, 2)]
    for file in ("rank-1.json", "rank-1.safetensors"):
        (tmp_path / names[0] / file).write_bytes((tmp_path / names[1] / file).read_bytes())
    with pytest.raises(CorruptedError, match="another checkpoint"):
        samples.load(store, names[0], Mesh())


@pytest.mark.parametrize("file", ["root.json", "rank-0.json", "rank-1.json", "rank-1.safetensors"])
def test_a_missing_file_is_detected(file: str, tmp_path) -> None:
    store = LocalStore(tmp_path)
    name = samples.save(store, Mesh(shard=2))
    (tmp_path / name / file).unlink()
    with pytest.raises(CorruptedError, match="cannot be read"):
        samples.load(store, name, Mesh())


def test_a_retired_checkpoint_no_longer_exists(store) -> None:
    name = samples.save(store, Mesh(shard=2))
    store.retire(name)
    assert store.names() == []


def test_few_manifests_are_read_if_the_plan_has_not_changed() -> None:
    mesh = Mesh(pipeline=16, replicate=4, shard=32, tensor=8)
    begin = time.perf_counter()
    for rank in (0, 4321, mesh.size - 1):
        position = {**mesh.coordinates(rank), "replicate": 0}
        replicas = [r for r in range(mesh.size) if {**mesh.coordinates(r), "replicate": 0} == position]
        order = manifest_search_order(mesh, mesh, rank)
        assert set(replicas) <= set(order[: 8 * mesh.replicate])
        assert 0 in order[: 8 * mesh.replicate]
        assert sorted(order) == list(range(mesh.size))
    assert time.perf_counter() - begin < 5


def test_retention() -> None:
    names = [name_of(step, f"{step:016x}") for step in (100, 200, 300, 400, 500)]
    at = dict(zip((100, 200, 300, 400, 500), names, strict=True))
    assert Retention(last=2).unneeded(names, at[500], best_step=200) == [at[100], at[300]]
    assert Retention(last=1, keep_every=200, best=False).unneeded(names, at[500], 200) == [at[100], at[300]]
    # Checkpoints of a superseded attempt and damaged ones are removed, and do not count as the last ones.
    assert Retention(last=2).unneeded(names, at[300], -1) == [at[100], at[400], at[500]]
    assert Retention(last=2).unneeded(names, at[500], -1, damaged=[at[400]]) == [at[100], at[200], at[400]]


def test_absurd_sizes_are_refused_without_allocating_memory() -> None:
    """Manifests whose hash is valid may still have absurd content."""
    absurd = [
        lambda: StoredTensor("F32", (1 << 50,), (Chunk((0,), (1 << 50,), 0, ""),)),
        lambda: StoredTensor("F32", (1 << 61,), ()),
        lambda: StoredTensor("F32", (1,) * 65, ()),
        lambda: StoredTensor("F32", (4,), (Chunk((-1,), (2,), 0, ""),)),
        lambda: StoredTensor("F32", (4,), (Chunk((3,), (2,), 0, ""),)),
        lambda: StoredTensor("pickle", (4,), ()),
        lambda: Manifest("", 0, 10, 11),
        lambda: Manifest("", 0, 10, 2, "", {"a": StoredTensor("F32", (4,), (Chunk((0,), (4,), 2, ""),))}),
    ]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for make in absurd:
        with pytest.raises(CorruptedError):
            make()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10
