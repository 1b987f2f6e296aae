"""Records of ranks other than 0: one per interval of steps."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onecurve.describe.record import EventRecord, IntervalRecord, Record, StepRecord
from onecurve.report.intervals import Intervals, interval_length


class Kept:
    def __init__(self) -> None:
        self.records: list[Record] = []
        self.closed = False

    def write(self, record: Record) -> None:
        self.records.append(record)

    def close(self) -> None:
        self.closed = True


def step(number: int, seconds: float = 0.1, waits: float = 0.02, skipped: bool = False) -> StepRecord:
    return StepRecord(
        step=number,
        loss=1.0 / number,
        count=8,
        gradient_norm=1.0,
        lr=0.1,
        loss_scale=1.0,
        samples=8 * number,
        skipped=skipped,
        seconds={"forward": seconds, "sync": waits},
        memory=number,
        skipped_samples=1,
    )


def written(steps: int, first: int = 1) -> list[IntervalRecord]:
    kept = Kept()
    intervals = Intervals(kept, clock=lambda: 0.0)
    for number in range(first, steps + 1):
        intervals.write(step(number))
    intervals.close()
    assert kept.closed
    return [record for record in kept.records if isinstance(record, IntervalRecord)]


@given(st.integers(1, 3000), st.integers(1, 300))
def test_every_step_is_in_one_interval(steps: int, first: int) -> None:
    records = written(steps, min(first, steps))
    assert sum(record.steps for record in records) == steps - min(first, steps) + 1
    assert records[-1].step == steps
    for record, after in pairwise(records):
        assert after.step == record.step + after.steps
    assert math.fsum(record.seconds["forward"] for record in records) == pytest.approx(
        0.1 * sum(record.steps for record in records)
    )


def test_the_first_steps_have_a_record_each_and_the_number_of_records_grows_slowly() -> None:
    assert all(record.steps == 1 for record in written(64))
    assert len(written(10_000)) < 320
    assert interval_length(1_000_000) == 16_384


def test_an_interval_has_the_sums_and_the_spread_of_its_steps() -> None:
    kept = Kept()
    intervals = Intervals(kept, clock=lambda: 0.0)
    for number in range(1025, 1057):
        intervals.write(step(number, seconds=0.1 if number % 2 else 0.3, skipped=number == 1030))
    (record,) = kept.records
    assert isinstance(record, IntervalRecord)
    assert (record.step, record.steps, record.skipped, record.skipped_samples, record.memory) == (1056, 32, 1, 32, 1056)
    assert record.deviation == pytest.approx(0.1)
    assert record.seconds["sync"] == pytest.approx(32 * 0.02)


def test_long_steps_end_an_interval_and_other_records_pass() -> None:
    kept, now = Kept(), [0.0]
    intervals = Intervals(kept, clock=lambda: now[0])
    event = EventRecord("warning", "text")
    for number in range(2049, 2053):
        intervals.write(step(number))
        now[0] += 30.0
    intervals.write(event)
    assert [record.kind for record in kept.records] == ["interval", "event"]
    assert kept.records[0].steps == 3  # type: ignore[union-attr]
