import io

import pytest
from rich.console import Console

from onecurve.describe.record import EvaluationRecord, EventRecord, StartRecord, StepRecord
from onecurve.describe.units import bytes_text, seconds_text
from onecurve.describe.verdict import CheckResult, Verdict
from onecurve.report.check_table import result_lines, verdict_line
from onecurve.report.progress import Terminal
from onecurve.report.sink import JsonLines


def step(number: int, **changes) -> StepRecord:
    fields = {
        "step": number,
        "loss": 2.5,
        "count": 8,
        "gradient_norm": 1.0,
        "lr": 1e-3,
        "loss_scale": 1.0,
        "samples": 8 * number,
    }
    return StepRecord(**(fields | {"skipped": False, "seconds": {"rounds": 0.1}} | changes))


def shown(records, steps: int = 400, **console) -> str:
    file = io.StringIO()
    terminal = Terminal(steps, 8, Console(file=file, width=80, **console))
    for record in records:
        terminal.write(record)
    terminal.close()
    return file.getvalue()


def test_without_a_terminal_a_few_plain_lines_are_printed() -> None:
    text = shown([StartRecord("replicate2 mb4 fp32", 2, "cpu", 1234, 400, global_batch=8), *map(step, range(1, 401))])
    lines = text.splitlines()
    assert lines[0] == "replicate2 mb4 fp32  2 cpu ranks, 1,234 parameters, 400 steps of 8 samples"
    assert lines[1] == "step   1/400  rank 0  loss 2.5000  80 samples/s  lr 1.00e-03  39.9 s left"
    assert lines[-1] == "step 400/400  rank 0  loss 2.5000 (mean of 397 steps)  80 samples/s  lr 1.00e-03"
    assert len(lines) == 5
    assert "\x1b" not in text


def test_in_a_terminal_the_bar_fits_80_columns() -> None:
    text = shown([step(120, loss=12.3456, seconds={"rounds": 0.0001})], steps=99_999, force_terminal=True)
    last = text.split("\r")[-1].split("\n")[-2]
    assert "120/99999" in last
    assert "loss 12.3456" in last
    assert "left" in last


def test_events_are_printed() -> None:
    text = shown(
        [step(1, skipped=True), EvaluationRecord(5, 1.5, {"top1": 0.75}, 360, 0.25), EventRecord("stopped", "x")]
    )
    assert "step 1: loss or gradient is not finite, update skipped" in text
    assert "step   5/400  evaluation: loss 1.5000  top1 0.7500  (360 samples, 250.0 ms)" in text
    assert "stopped  x" in text


def test_a_record_is_written_at_once_as_a_line_of_json(tmp_path) -> None:
    sink = JsonLines(tmp_path / "records" / "rank-0.jsonl")
    sink.write(step(3, loss=float("nan")))
    text = (tmp_path / "records" / "rank-0.jsonl").read_text()  # read before the sink is closed
    assert text.startswith('{"step":3,"loss":null,')
    sink.close()


def test_numbers_have_units() -> None:
    assert [bytes_text(n) for n in (12, 2048, 63.4 * 2**30)] == ["12 B", "2.0 KiB", "63.4 GiB"]
    assert [seconds_text(s) for s in (0.0412, 8.3, 125, 11_220)] == ["41.2 ms", "8.3 s", "2 min 05 s", "3 h 07 min"]


def test_verdicts_are_printed() -> None:
    good = Verdict(plan="mb8 fp64", outcome="holds", size=2e-9, limit=3e-8, step=1, tensor="loss")
    bad = Verdict(plan="shard2 mb4 fp64", outcome="differs", size=0.5, step=2, tensor="gradient w")
    assert "holds" in verdict_line(good, 16)
    assert "2.0e-09 (limit 3e-08)  largest difference at loss" in verdict_line(good, 16)
    assert "first at step 2, gradient w" in verdict_line(bad, 16)
    (line,) = result_lines(CheckResult("fp64", 4, 1e-9, (good, bad), ()))
    assert line.startswith(
        "of 2 plans, 1 does not compute the same as one device (limit: 1e-09 of each tensor's scale, "
    )
    assert "gradient is zero except for rounding errors" in line
    assert result_lines(CheckResult("fp64", 4, 1e-9, (good,), ("a note",)))[0] == "note: a note"


def test_reasons_of_failures_are_printed_once() -> None:
    trace = "rank 0 failed: Traceback (most recent call last):\n  File ...\nRuntimeError: no kernel"
    failed = [Verdict(plan=f"shard2 mb{size}", outcome="failed", reason=trace) for size in (4, 8)]
    refused = Verdict(plan="tensor2 mb8", outcome="refused", reason="nothing can be split")
    assert verdict_line(failed[0], 10).endswith("RuntimeError: no kernel")
    assert verdict_line(refused, 11) == "[yellow]refused[/yellow] tensor2 mb8  nothing can be split"
    lines = result_lines(CheckResult("fp64", 4, 1e-9, (*failed, refused), ()))
    assert lines[0] == "shard2 mb4, shard2 mb8 failed:"
    assert sum("no kernel" in line for line in lines) == 1
    assert lines[-1].startswith("of 3 plans, 2 failed, 1 was refused")


def test_a_line_has_the_epoch_its_time_and_the_mean_loss_since_the_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("onecurve.report.progress.time.monotonic", lambda: now[0])
    console = Console(file=io.StringIO(), width=200)
    terminal = Terminal(100, 8, console, epoch_samples=400)
    for number in range(1, 21):
        now[0] += 1.0
        terminal.write(step(number, loss=float(number), samples=8 * number))
    lines = console.file.getvalue().splitlines()
    assert len(lines) == 4  # the first three, and one after ten seconds
    assert lines[0].startswith("step   1/100  rank 0  epoch 0.02  loss 1.0000")
    assert "loss 8.5000 (mean of 10 steps)  " in lines[3]  # steps 4 to 13
    assert "5.0 s per epoch" in lines[3]
