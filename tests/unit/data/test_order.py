"""The order of samples is a bijection, whatever the mesh, and costs nothing to ask for."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onecurve.data.bijection import permute
from onecurve.data.loader import share_bounds
from onecurve.data.order import Order, round_bounds
from onecurve.describe.errors import OnecurveError
from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Plan, split_evenly

keys = st.integers(0, 2**64 - 1)
file_sizes = st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(sum)


@given(st.integers(1, 3000), keys)
def test_permute_is_a_bijection(size: int, key: int) -> None:
    images = permute(np.arange(size, dtype=np.uint64), size, key)
    assert np.array_equal(np.sort(images), np.arange(size))


@given(st.integers(1, 10**15), keys, st.data())
def test_permute_stays_inside_and_never_meets_itself(size: int, key: int, data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, size - 1))
    indices = np.arange(begin, min(size, begin + 500), dtype=np.uint64)
    images = permute(indices, size, key)
    assert images.max() < size
    assert np.unique(images).size == indices.size


def test_permute_looks_shuffled() -> None:
    """Neighbours are torn apart, places are evenly used, keys give other orders."""
    size = 10_000
    indices = np.arange(size, dtype=np.uint64)
    one, two = (permute(indices, size, key).astype(np.int64) for key in (1, 2))
    assert abs(np.corrcoef(indices, one)[0, 1]) < 0.05
    assert np.median(np.abs(np.diff(one))) > size / 5
    assert (one == two).sum() < 20
    first = [int(permute(np.zeros(1, dtype=np.uint64), 10, key)[0]) for key in range(2000)]
    assert np.bincount(first, minlength=10).min() > 130


@given(file_sizes, st.integers(1, 5), st.integers(0, 100))
def test_an_epoch_has_every_sample_once(files: list[int], window: int, seed: int) -> None:
    order = Order(files, seed, window)
    for epoch in range(2):
        samples = list(order.samples(epoch * order.size, (epoch + 1) * order.size))
        assert {sample.epoch for sample in samples} == {epoch}
        assert sorted((s.file, s.offset) for s in samples) == [(f, i) for f, n in enumerate(files) for i in range(n)]


@given(file_sizes, st.integers(1, 5))
def test_a_window_holds_few_files(files: list[int], window: int) -> None:
    """Reading on, no file is met again once its window is done."""
    order = Order(files, 3, window)
    seen = [sample.file for sample in order.samples(0, order.size)]
    spans = [range(seen.index(file), len(seen) - seen[::-1].index(file)) for file in set(seen)]
    for place in range(len(seen)):
        assert sum(place in span for span in spans) <= window


@given(st.integers(1, 60), st.integers(0, 200), st.integers(0, 200))
def test_any_cut_gives_the_same_samples(size: int, begin: int, length: int) -> None:
    order = Order([size], 0)
    whole = list(order.samples(begin, begin + length))
    middle = begin + length // 3
    assert whole == [*order.samples(begin, middle), *order.samples(middle, begin + length)]


@st.composite
def splits(draw: st.DrawFn) -> Plan:
    mesh = Mesh(replicate=draw(st.integers(1, 4)), shard=draw(st.integers(1, 3)))
    rounds = draw(st.integers(1, 3))
    even = split_evenly(draw(st.integers(mesh.data, 3 * mesh.data)), mesh.data)
    shares = draw(st.one_of(st.just(even), st.tuples(*[st.integers(1, 3)] * mesh.data)))
    return Plan(mesh, shares, rounds)


@given(st.lists(splits(), min_size=1, max_size=6), st.integers(20, 300), st.integers(0, 9))
def test_exactly_once_under_every_change_of_mesh_in_mid_epoch(plans: list[Plan], size: int, seed: int) -> None:
    """The ranks' shares of consecutive steps, each step by another mesh, shares and global batch, make one order."""
    order = Order([size], seed)
    position, taken = 0, []
    while position < 2 * size:
        plan = plans[len(taken) % len(plans)]
        step = []
        for number in range(plan.rounds):
            for rank in range(plan.mesh.data):
                step += order.samples(*share_bounds(plan, rank, position, number))
        taken.append(step)
        position += plan.global_batch
    assert [sample for step in taken for sample in step] == list(order.samples(0, position))


@given(st.integers(0, 1000), st.integers(1, 500), st.integers(1, 20))
def test_rounds_cover_the_step(position: int, batch: int, rounds: int) -> None:
    bounds = [round_bounds(position, batch, rounds, number) for number in range(rounds)]
    assert [place for bound in bounds for place in range(*bound)] == list(range(position, position + batch))


def test_ten_trillion_samples_in_under_a_millisecond_a_batch() -> None:
    order = Order([10**13], 0)
    many_files = Order([10**7] * 10**6, 0, window=16)
    for each in (order, many_files):
        each.samples(0, 512)
        times = []
        for number in range(50):
            begin = number * 199_999_999_999
            start = time.perf_counter()
            each.samples(begin, begin + 512)
            times.append(time.perf_counter() - start)
        assert min(times) < 1e-3  # the cost itself: what other processes take of the machine only adds to it


def test_an_empty_dataset_is_refused() -> None:
    with pytest.raises(OnecurveError, match="empty"):
        Order([0, 0], 0)
