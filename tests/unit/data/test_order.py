"""The sample order visits every sample once per epoch on every mesh, and is fast to compute."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onecurve.data.bijection import permute
from onecurve.data.order import Order, round_bounds, share_bounds
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
def test_permute_stays_below_size_and_has_no_duplicates(size: int, key: int, data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, size - 1))
    indices = np.arange(begin, min(size, begin + 500), dtype=np.uint64)
    images = permute(indices, size, key)
    assert images.max() < size
    assert np.unique(images).size == indices.size


def test_permute_looks_shuffled() -> None:
    """Neighbours are far apart, images are uniformly distributed, and different keys give different orders."""
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
def test_at_most_one_window_of_files_is_open(files: list[int], window: int) -> None:
    """A file does not occur again after its window."""
    order = Order(files, 3, window)
    seen = [sample.file for sample in order.samples(0, order.size)]
    spans = [range(seen.index(file), len(seen) - seen[::-1].index(file)) for file in set(seen)]
    for position in range(len(seen)):
        assert sum(position in span for span in spans) <= window


@given(st.integers(1, 60), st.integers(0, 200), st.integers(0, 200))
def test_samples_do_not_depend_on_how_a_range_is_split(size: int, begin: int, length: int) -> None:
    order = Order([size], 0)
    expected = list(order.samples(begin, begin + length))
    middle = begin + length // 3
    assert expected == [*order.samples(begin, middle), *order.samples(middle, begin + length)]


@st.composite
def splits(draw: st.DrawFn) -> Plan:
    mesh = Mesh(replicate=draw(st.integers(1, 4)), shard=draw(st.integers(1, 3)))
    rounds = draw(st.integers(1, 3))
    even = split_evenly(draw(st.integers(mesh.data, 3 * mesh.data)), mesh.data)
    shares = draw(st.one_of(st.just(even), st.tuples(*[st.integers(1, 3)] * mesh.data)))
    return Plan(mesh, shares, rounds)


@given(st.lists(splits(), min_size=1, max_size=6), st.integers(20, 300), st.integers(0, 9))
def test_every_sample_is_read_once_if_the_mesh_changes_within_an_epoch(plans: list[Plan], size: int, seed: int) -> None:
    """The ranks' shares of consecutive steps follow the order, with another mesh, shares and global batch per step."""
    order = Order([size], seed)
    position, steps = 0, []
    while position < 2 * size:
        plan = plans[len(steps) % len(plans)]
        step = []
        for number in range(plan.rounds):
            for rank in range(plan.mesh.data):
                step += order.samples(*share_bounds(plan, rank, position, number))
        steps.append(step)
        position += plan.global_batch
    assert [sample for step in steps for sample in step] == list(order.samples(0, position))


@given(st.integers(0, 1000), st.integers(1, 500), st.integers(1, 20))
def test_rounds_cover_the_step(position: int, batch: int, rounds: int) -> None:
    bounds = [round_bounds(position, batch, rounds, number) for number in range(rounds)]
    assert [index for bound in bounds for index in range(*bound)] == list(range(position, position + batch))


def test_ten_trillion_samples_in_under_a_millisecond_a_batch() -> None:
    order = Order([10**13], 0)
    many_files = Order([10**7] * 10**6, 0, window=16)
    for tested in (order, many_files):
        tested.samples(0, 512)
        times = []
        for number in range(50):
            begin = number * 199_999_999_999
            start = time.perf_counter()
            tested.samples(begin, begin + 512)
            times.append(time.perf_counter() - start)
        assert min(times) < 1e-3  # the minimum: other processes on the machine can only add time


def test_an_empty_dataset_is_refused() -> None:
    with pytest.raises(OnecurveError, match="empty"):
        Order([0, 0], 0)


def test_the_order_stays_the_same_in_every_version() -> None:
    """A run that is resumed with a later version must not read a sample twice."""
    epochs = [[sample.offset for sample in Order([10], 0).samples(begin, begin + 10)] for begin in (0, 10)]
    assert epochs == [[7, 9, 2, 1, 5, 6, 0, 4, 8, 3], [2, 3, 5, 1, 0, 7, 8, 4, 6, 9]]
    windows = [(sample.file, sample.offset) for sample in Order([3, 2, 4, 1], 7, window=2).samples(0, 10)]
    assert windows == [(3, 0), (1, 0), (1, 1), (2, 0), (2, 3), (0, 1), (2, 1), (2, 2), (0, 2), (0, 0)]
    large = permute(np.array([0, 1, 10**13 - 1], dtype=np.uint64), 10**13, 5)
    assert large.tolist() == [6005966273964, 9382547973835, 9014900063399]


def test_no_samples_between_equal_positions() -> None:
    assert len(Order([10], 0).samples(4, 4)) == 0
    assert len(Order([10], 0).samples(4, 25)) == 21


@pytest.mark.parametrize(("files", "window"), [([3, -1], 1), ([3, 2], 0), ([], 1), ([0], 1)])
def test_impossible_files_and_windows_are_refused(files: list[int], window: int) -> None:
    with pytest.raises(OnecurveError, match="data: "):
        Order(files, 0, window)


def test_one_sample_and_empty_files_are_enough() -> None:
    assert [tuple(sample) for sample in Order([0, 1, 0], 0, window=1).samples(1, 3)] == [(1, 1, 0), (2, 1, 0)]


def test_the_files_of_two_neighbouring_epochs_are_shuffled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    order, shuffled = Order([4] * 5, 0), []

    def counting(indices: np.ndarray, size: int, key: int) -> np.ndarray:
        shuffled.append(size)
        return permute(indices, size, key)

    monkeypatch.setattr("onecurve.data.order.permute", counting)
    for _ in range(3):
        order.samples(58, 62)  # the end of epoch 2 and the beginning of epoch 3
        order.samples(42, 44)
    assert shuffled.count(5) == 2
    order.samples(80, 81)  # epoch 4: epoch 2 is forgotten, epoch 3 is not
    order.samples(60, 61)
    assert shuffled.count(5) == 3
    order.samples(40, 41)
    assert shuffled.count(5) == 4


def test_bounds_of_rounds_and_shares_by_hand() -> None:
    assert [round_bounds(100, 12, 3, number) for number in range(3)] == [(100, 104), (104, 108), (108, 112)]
    plan = Plan(Mesh(replicate=2), (3, 1), 3)
    assert [share_bounds(plan, 1, 100, number) for number in range(3)] == [(103, 104), (107, 108), (111, 112)]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=7).filter(any), st.integers(1, 4), st.integers(0, 60))
def test_the_next_use_of_a_file_is_when_its_window_is_read(files: list[int], window: int, position: int) -> None:
    order = Order(files, 3, window)
    uses = order.next_uses(position)
    end = (position // order.size + 2) * order.size
    samples = list(order.samples(position, end))
    for file, size in enumerate(files):
        read = [position + at for at, sample in enumerate(samples) if sample.file == file]
        if size:
            assert position <= uses[file] <= read[0]
    # Between two windows, all files of a window have the same use, and no window has two.
    windows = sorted(set(uses.tolist()))
    assert windows[0] == position


@given(st.lists(st.integers(1, 5), min_size=1, max_size=7), st.integers(0, 60))
def test_a_file_that_is_a_window_of_its_own_is_used_next_when_its_next_sample_is_read(
    files: list[int], position: int
) -> None:
    """Also at the position behind its last sample: then it is used in the next epoch, and may be evicted until then."""
    order = Order(files, 3)
    upcoming = order.samples(position, (position // order.size + 2) * order.size).files.tolist()
    assert order.next_uses(position).tolist() == [position + upcoming.index(file) for file in range(len(files))]
