"""Records are read back as they were written, also those of a run that was killed."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from onecurve.describe.errors import OnecurveError
from onecurve.describe.record import RECORD_VERSION, EvaluationRecord, EventRecord, Record, StartRecord, StepRecord
from onecurve.report.sink import JsonLines
from onecurve.runs.folder import records_file
from onecurve.runs.records import read_records

START = StartRecord(
    plan="mb8 fp32", ranks=2, device="cpu", parameters=21, steps=10, predicted={"forward": 0.25, "backward": 0.5}
)
EVALUATION = EvaluationRecord(step=0, loss=0.5, metrics={"accuracy": 0.75}, samples=64, seconds=0.1)
EVENT = EventRecord("saved", 'step 1 → "runs/a"\nsecond line')


def step_record(step: int, loss: float = 2.5, gradient_norm: float = 1.0) -> StepRecord:
    return StepRecord(
        step=step,
        loss=loss,
        count=8.0,
        gradient_norm=gradient_norm,
        lr=1e-3,
        loss_scale=1.0,
        samples=8 * step,
        skipped=not math.isfinite(loss),
        seconds={"data": 0.1, "rounds": 0.2},
    )


def write(folder: Path, records: list[Record], rank: int = 0) -> Path:
    path = records_file(folder, rank)
    sink = JsonLines(path)
    for record in records:
        sink.write(record)
    sink.close()
    return path


def test_all_kinds_of_records_round_trip(tmp_path: Path) -> None:
    records: list[Record] = [START, step_record(0), EVALUATION, EVENT, step_record(1)]
    write(tmp_path, records)
    assert list(read_records(tmp_path)) == records


def test_each_rank_has_its_own_records(tmp_path: Path) -> None:
    write(tmp_path, [step_record(0)])
    write(tmp_path, [step_record(7)], rank=1)
    assert list(read_records(tmp_path, rank=1)) == [step_record(7)]


def test_a_resumed_run_appends_to_its_records(tmp_path: Path) -> None:
    write(tmp_path, [START, step_record(0)])
    write(tmp_path, [START, step_record(1)])
    assert list(read_records(tmp_path)) == [START, step_record(0), START, step_record(1)]


def test_an_incomplete_last_line_is_left_out(tmp_path: Path) -> None:
    path = write(tmp_path, [step_record(0), step_record(1)])
    content = path.read_bytes()
    for cut in (1, 2, 40):  # even if only the line break is missing
        path.write_bytes(content[:-cut])
        assert list(read_records(tmp_path)) == [step_record(0)]


def test_a_damaged_line_in_the_middle_is_refused_with_its_number(tmp_path: Path) -> None:
    path = write(tmp_path, [step_record(0)])
    path.write_bytes(path.read_bytes() + b'{"kind":"st\n' + path.read_bytes())
    records = read_records(tmp_path)
    assert next(records) == step_record(0)
    with pytest.raises(OnecurveError, match=r"rank-0.jsonl:2: not valid JSON"):
        next(records)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_read_as_nan(tmp_path: Path, value: float) -> None:
    write(tmp_path, [step_record(3, loss=value, gradient_norm=value)])
    (record,) = read_records(tmp_path)
    assert isinstance(record, StepRecord)
    assert math.isnan(record.loss)
    assert math.isnan(record.gradient_norm)
    assert (record.step, record.skipped) == (3, True)


def test_records_of_a_newer_version_are_refused(tmp_path: Path) -> None:
    newer = StartRecord(
        plan="mb8 fp32", ranks=2, device="cpu", parameters=21, steps=10, version=RECORD_VERSION + 1, predicted={}
    )
    write(tmp_path, [newer])
    with pytest.raises(OnecurveError, match=r"rank-0.jsonl:1: .* version 4, .* up to 3; upgrade onecurve"):
        list(read_records(tmp_path))


def test_steps_that_were_counted_from_0_are_read_as_counted_from_1(tmp_path: Path) -> None:
    older = replace(START, version=1)
    write(tmp_path, [older, step_record(0), EVALUATION, START, step_record(2)])  # resumed by a newer onecurve
    _, first, evaluation, _, second = read_records(tmp_path)
    assert (first, evaluation, second) == (replace(step_record(0), step=1), replace(EVALUATION, step=1), step_record(2))


def test_an_unknown_kind_of_record_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, [step_record(0)])
    path.write_text(path.read_text().replace('"kind":"step"', '"kind":"steps"'))
    with pytest.raises(OnecurveError, match=r"unknown kind of record 'steps' .*start, step, interval, memory"):
        list(read_records(tmp_path))


def test_a_field_of_another_version_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, [step_record(0)])
    path.write_text(path.read_text().replace('"loss_scale"', '"scale"'))
    with pytest.raises(OnecurveError, match="unknown key 'scale'"):
        list(read_records(tmp_path))
