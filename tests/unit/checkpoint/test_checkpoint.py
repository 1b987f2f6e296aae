"""From any mesh to any other; every bit counts; what is read is not believed."""

import random
import resource
import time

import pytest
import samples
import torch
from hypothesis import given
from hypothesis import strategies as st

from onecurve.checkpoint.chunk import cut
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
def test_from_any_mesh_into_any_other(saved: Mesh, store) -> None:
    name = samples.save(store, saved)
    assert store.names() == [name]
    for mesh in MESHES:
        samples.load(store, name, mesh)


def test_copies_share_the_work(tmp_path) -> None:
    name = samples.save(LocalStore(tmp_path), Mesh(replicate=2))
    assert all((tmp_path / name / f"rank-{rank}.safetensors").stat().st_size for rank in range(2))


@given(st.lists(st.integers(0, 9), max_size=4), st.integers(1, 40))
def test_chunks_are_small_and_make_up_the_whole(sizes: list[int], limit: int) -> None:
    whole = torch.zeros(sizes, dtype=torch.int64)
    for offsets, lengths in cut(sizes, limit):
        part = whole[tuple(slice(o, o + n) for o, n in zip(offsets, lengths, strict=True))]
        assert 1 <= part.numel() <= limit
        part += 1
    assert (whole == 1).all()


@pytest.mark.parametrize("flips", [600, pytest.param(10_000, marks=pytest.mark.slow)])
def test_a_flipped_bit_is_found_wherever_it_is(flips: int, tmp_path) -> None:
    store = LocalStore(tmp_path)
    name = samples.save(store, Mesh(replicate=2, shard=2))
    files = sorted((tmp_path / name).iterdir())
    sizes = [file.stat().st_size for file in files]
    draw = random.Random(0)
    unseen = []
    for number in range(flips):
        # Every file often enough, however small it is beside the others.
        file = files[number % len(files)] if number % 2 else draw.choices(files, sizes)[0]
        content = file.read_bytes()
        bit = draw.randrange(len(content) * 8)
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        file.write_bytes(changed)
        try:
            samples.load(store, name, Mesh())
            unseen.append((file.name, bit))
        except CorruptedError:
            pass
        file.write_bytes(content)
    assert not unseen
    samples.load(store, name, Mesh())


def test_files_of_two_saves_do_not_mix(tmp_path) -> None:
    store = LocalStore(tmp_path)
    names = [samples.save(store, Mesh(shard=2), seed=seed, token=f"{seed:016x}") for seed in (1, 2)]
    for file in ("rank-1.json", "rank-1.safetensors"):
        (tmp_path / names[0] / file).write_bytes((tmp_path / names[1] / file).read_bytes())
    with pytest.raises(CorruptedError, match="another checkpoint"):
        samples.load(store, names[0], Mesh())


@pytest.mark.parametrize("file", ["root.json", "rank-0.json", "rank-1.json", "rank-1.safetensors"])
def test_a_file_too_few_is_found(file: str, tmp_path) -> None:
    store = LocalStore(tmp_path)
    name = samples.save(store, Mesh(shard=2))
    (tmp_path / name / file).unlink()
    with pytest.raises(CorruptedError, match="cannot be read"):
        samples.load(store, name, Mesh())


def test_what_was_retired_no_longer_exists(store) -> None:
    name = samples.save(store, Mesh(shard=2))
    store.retire(name)
    assert store.names() == []


def test_where_the_plan_is_the_same_few_manifests_are_read() -> None:
    mesh = Mesh(pipeline=16, replicate=4, shard=32, tensor=8)
    begin = time.perf_counter()
    for rank in (0, 4321, mesh.size - 1):
        place = mesh.coordinates(rank)
        copies = [r for r in range(mesh.size) if {**mesh.coordinates(r), "replicate": 0} == {**place, "replicate": 0}]
        first = manifest_search_order(mesh, mesh, rank)
        assert set(copies) <= set(first[: 8 * mesh.replicate])
        assert 0 in first[: 8 * mesh.replicate]
        assert sorted(first) == list(range(mesh.size))
    assert time.perf_counter() - begin < 5


def test_what_is_kept() -> None:
    names = [name_of(step, f"{step:016x}") for step in (100, 200, 300, 400, 500)]
    of = dict(zip((100, 200, 300, 400, 500), names, strict=True))
    assert Retention(last=2).unneeded(names, of[500], best_step=200) == [of[100], of[300]]
    assert Retention(last=1, keep_every=200, best=False).unneeded(names, of[500], 200) == [of[100], of[300]]
    # A life that was given up, and what could not be read: both go, and do not count as the last.
    assert Retention(last=2).unneeded(names, of[300], -1) == [of[100], of[400], of[500]]
    assert Retention(last=2).unneeded(names, of[500], -1, damaged=[of[400]]) == [of[100], of[200], of[400]]


def test_absurd_sizes_cost_nothing() -> None:
    """Manifests with hashes that are right, but contents that are not."""
    huge = [
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
    for make in huge:
        with pytest.raises(CorruptedError):
            make()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10
