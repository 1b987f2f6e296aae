"""Streams: a step has the same samples for any ranks, a rank reads few lanes, and a lane continues from its state."""

import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import IterableDataset

import onecurve as oc
from onecurve.data import lane_states
from onecurve.data.lane_states import LaneStates, spaced
from onecurve.data.loader import Reader
from onecurve.data.stream_order import StreamOrder
from onecurve.data.training_data import TrainingData, open_data
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan

STEPS = 4
PLANS = ["mb12", "mb4×3", "replicate2 mb3×2", "shard3 mb4", "replicate4 mb3", "replicate2 mb(4,2)×2"]


def counted(lane: int) -> Iterator[torch.Tensor]:
    """Sample n of a lane is 1000 × lane + n, and a draw that depends on the random generators."""
    for number in itertools.count():
        yield torch.tensor([1000 * lane + number, random.randrange(1 << 30)])


def ledger(data: TrainingData, plan: Plan, workers: int = 0, start: int = 0) -> list[list[Any]]:
    """The samples of each step, over all ranks."""
    steps: list[list[Any]] = [[] for _ in range(STEPS - start)]
    for rank in range(plan.mesh.data):
        batches = data.batches(plan, rank, workers)
        batches.start(start, start * 12, STEPS)
        for batch in batches:
            steps[batch.step - 1 - start] += [row for micro in batch.rounds for row in micro.target.tolist()]
    return [sorted(step) for step in steps]


def stream_data(lanes: int, open_lane: Callable[[int], Any] = counted) -> TrainingData:
    source = oc.data.stream(open_lane, lanes).map(lambda sample: (sample, sample))
    return TrainingData(Reader(source, 0), source.order(0), STEPS)


@pytest.mark.parametrize("lanes", [1, 4, 12, 24])
def test_every_world_reads_the_same_samples_in_the_same_steps(lanes: int) -> None:
    expected = ledger(stream_data(lanes), Plan.parse("mb12"))
    numbers = [row[0] for step in expected for row in step]
    assert sorted(numbers) == sorted(1000 * (p % lanes) + p // lanes for p in range(12 * STEPS))
    for plan in PLANS:
        assert ledger(stream_data(lanes), Plan.parse(plan)) == expected, plan
        assert ledger(stream_data(lanes), Plan.parse(plan), start=2) == expected[2:], plan
    assert ledger(stream_data(lanes), Plan.parse("replicate2 mb6"), workers=2) == expected


@pytest.mark.parametrize(("lanes", "batch", "ranks"), [(64, 64, 8), (64, 512, 8), (256, 64, 8), (64, 512, 5)])
def test_a_rank_reads_few_lanes(lanes: int, batch: int, ranks: int) -> None:
    shares = [batch // ranks + (rank < batch % ranks) for rank in range(ranks)]
    plan = Plan.parse(f"replicate{ranks} mb({','.join(map(str, shares))})")
    order = StreamOrder(lanes)
    for rank in range(ranks):
        read = {lane for step in range(20) for lane in order.share(plan, rank, step * batch, 0).files.tolist()}
        assert len(read) <= lanes // ranks + 2


@given(st.integers(1, 40), st.integers(0, 10**12), st.sampled_from(PLANS))
def test_shares_divide_the_positions_of_a_step(lanes: int, position: int, text: str) -> None:
    plan, order = Plan.parse(text), StreamOrder(lanes)
    shares = [
        tuple(sample)
        for rank in range(plan.mesh.data)
        for number in range(plan.rounds)
        for sample in order.share(plan, rank, position, number)
    ]
    assert Counter(shares) == Counter(map(tuple, order.samples(position, position + 12)))


class Resumable:
    """A lane that counts, and how many of its samples were read."""

    reads = 0

    def __init__(self, lane: int) -> None:
        self.lane, self.at = lane, 0

    def __iter__(self) -> Iterator[int]:
        while True:
            Resumable.reads += 1
            self.at += 1
            yield 1000 * self.lane + self.at - 1

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "tensor": torch.tensor(self.at)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert int(state["tensor"]) == state["at"]
        self.at = state["at"]


def test_a_lane_with_a_state_continues_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_states, "_SECONDS", 0.0)
    first = oc.data.stream(Resumable, lanes=2)
    first.keep_states(tmp_path / "lanes")
    assert [first.read(1, n) for n in range(50)] == [1000 + n for n in range(50)]
    Resumable.reads = 0
    second = oc.data.stream(Resumable, lanes=2)
    second.keep_states(tmp_path / "lanes")
    assert second.read(1, 50) == 1050
    assert Resumable.reads == 1
    assert second.read(1, 40) == 1040, "an earlier checkpoint"
    assert Resumable.reads < 15
    assert second.read(0, 5) == 5, "no state is known"


def test_damaged_states_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_states, "_SECONDS", 0.0)
    LaneStates(tmp_path).offer(0, 3, lambda: {"at": 3})
    assert LaneStates(tmp_path).latest(0, 5) == (3, {"at": 3})
    (file,) = tmp_path.iterdir()
    for content in (b"", b"junk", file.read_bytes()[:50]):
        file.write_bytes(content)
        assert LaneStates(tmp_path).latest(0, 5) is None


@given(st.integers(1, 2000))
def test_old_states_are_kept_at_growing_distances(count: int) -> None:
    kept: list[int] = []
    for number in range(count):
        kept = spaced([*kept, number])
    assert kept[-1] == count - 1
    assert len(kept) <= 2 + count.bit_length()
    for older, newer in itertools.pairwise(kept):
        assert newer - older <= 1 + 3 * (count - newer)


def test_a_lane_that_ends_begins_anew() -> None:
    source = oc.data.stream(lambda lane: [lane, lane + 10], lanes=2)
    assert [source.read(1, n) for n in range(5)] == [1, 11, 1, 11, 1]
    with pytest.raises(OnecurveError, match="lane 0 has no samples"):
        oc.data.stream(lambda _: [], lanes=1).read(0, 0)


class Numbers(IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for number in range(1000):
            yield torch.tensor([float(number)]), torch.tensor([float(number)])


def stream_job(**changes: Any) -> oc.Job:
    fields: dict[str, Any] = {
        "model": lambda: nn.Linear(1, 1),
        "data": Numbers,
        "loss": oc.loss.mse,
        "optimizer": oc.SGD(lr=1e-9),
        "global_batch": 12,
        "steps": STEPS,
    }
    return oc.Job(**{**fields, **changes})


def test_an_iterable_dataset_is_one_lane() -> None:
    data = open_data(stream_job())
    assert "every rank reads all of it" in data.note
    assert data.order.text == "a stream of 1 lanes"
    expected = ledger(data, Plan.parse("mb12"))
    assert [row[0] for row in expected[1]] == list(range(12, 24))
    assert ledger(data, Plan.parse("replicate3 mb2×2")) == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": None, "epochs": 1}, "has no end: set steps="),
        ({"data": lambda: oc.data.stream(counted, lanes=8)}, r"lanes=8 and global_batch=12.*for example lanes=4 or"),
        ({"data": lambda: 3}, "or one that can be iterated over, got int"),
    ],
)
def test_unsuitable_streams_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(OnecurveError, match=message):
        open_data(stream_job(**changes))


def test_streams_are_not_packed_mixed_or_prepared(tmp_path: Path) -> None:
    source = oc.data.stream(counted, 4).map(lambda each: each)
    with pytest.raises(OnecurveError, match="cannot be prepared or packed"):
        source.packed(4)
    with pytest.raises(OnecurveError, match="cannot be prepared or packed"):
        oc.data.prepared(source, to=str(tmp_path / "x"))
    with pytest.raises(OnecurveError, match="a is a stream, which cannot be mixed"):
        oc.data.mix({"a": 1.0}, {"a": source})


def shuffled(lane: int) -> list[int]:
    """Draws when it is called."""
    return [100 * lane + number for number in random.sample(range(100), 50)]


def test_a_lane_has_the_same_samples_however_it_is_come_to() -> None:
    straight = oc.data.stream(shuffled, 2)
    expected = [straight.read(1, n) for n in range(70)]
    for begin in (5, 60):
        random.seed(begin)
        assert oc.data.stream(shuffled, 2).read(1, begin) == expected[begin]


def test_what_can_be_read_only_once_is_refused() -> None:
    once = iter(range(100))
    source = oc.data.stream(lambda _: once, lanes=1)
    assert source.read(0, 3) == 3
    with pytest.raises(OnecurveError, match="returned an object that was read already"):
        source.read(0, 1)
    stateful = Resumable(0)
    source = oc.data.stream(lambda _: stateful, lanes=1)
    assert source.read(0, 3) == 3
    with pytest.raises(OnecurveError, match="returned an object that was read already"):
        source.read(0, 1)
    with pytest.raises(OnecurveError, match="an iterator, which can be read only once"):
        open_data(stream_job(data=lambda: iter(Numbers())))


def test_reading_a_lane_again_says_how_long_it_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sample takes 2 s: the line comes after 2 of 10 samples, when 8 are left."""
    now = 0.0

    def slow(_: int) -> Iterator[int]:
        nonlocal now
        for number in itertools.count():
            now += 2.0
            yield number

    monkeypatch.setattr(time, "monotonic", lambda: now)
    source = oc.data.stream(slow, lanes=1)
    assert source.read(0, 10) == 10
    (line,) = capsys.readouterr().err.splitlines()
    assert "lane 0 is read again up to sample 10, from 0, which takes about 16 s more" in line
    assert source.read(0, 11) == 11
    assert capsys.readouterr().err == ""


def test_the_newest_state_before_a_sample_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    states = LaneStates(tmp_path)
    for at in range(1, 6):
        states.offer(7, at, lambda at=at: {"at": at})
        now += lane_states._SECONDS / 2  # every second one is stored
    found = [states.latest(7, offset) for offset in (2, 3, 4, 5, 9)]
    assert [state and state[0] for state in found] == [None, 3, 3, 5, 5]
    assert states.latest(6, 9) is None
    LaneStates(None).offer(7, 1, lambda: {"at": 1})
    assert LaneStates(None).latest(7, 9) is None


def test_a_position_is_a_sample_of_a_lane() -> None:
    stream = oc.data.stream(counted, 3)
    assert [stream.read_at(index)[0].item() for index in (0, 1, 2, 3, 7)] == [0, 1000, 2000, 1, 1002]
