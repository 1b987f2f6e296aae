"""Lines are wrapped between words on a terminal, and left as they are anywhere else."""

import io
import shlex
import subprocess
import sys

import pytest
from rich.console import Console

from onecurve.describe.record import EvaluationRecord, EventRecord, StartRecord
from onecurve.report.progress import Terminal
from onecurve.report.text import print_lines, print_markup, wrapped

LONG = "  shard2·tensor2 mb4 fp32  12% slower: all-gathers of the parameters take 41.2 ms of each step"


@pytest.mark.parametrize("width", [20, 40, 60, 80])
def test_no_line_is_broken_inside_a_word_or_wider_than_the_terminal(width: int) -> None:
    bar = "  backward      750.0 ms   75%  ██████████████████████"
    for line in [LONG, bar, "step    41.2 ms ± 12%, 1,024 samples/s, 38% of peak FLOP/s", "note: " + "word " * 30]:
        parts = wrapped(line, width)
        assert " ".join(parts).split() == line.split()
        assert all(len(part) <= width or len(part.split()) == 1 for part in parts)


def test_a_table_continues_under_its_last_column() -> None:
    assert wrapped(LONG, 60) == [
        "  shard2·tensor2 mb4 fp32  12% slower: all-gathers of the",
        "                           parameters take 41.2 ms of each",
        "                           step",
    ]


def test_a_last_column_far_to_the_right_gets_its_own_line() -> None:
    assert wrapped(LONG, 46) == [
        "  shard2·tensor2 mb4 fp32",
        "    12% slower: all-gathers of the parameters",
        "      take 41.2 ms of each step",
    ]


def test_a_file_gets_whole_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    print_lines([LONG])
    assert capsys.readouterr().out == f"{LONG}\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_lines([LONG])
    assert len(capsys.readouterr().out.splitlines()) == 3


RESUMED = "[bold]resumed[/bold]  from step 100, runs/gpt/checkpoints/step-00000100-76d2b74c00000000 and further words"


def printed(terminal: bool, width: int = 40) -> list[str]:
    file = io.StringIO()
    print_markup(Console(file=file, width=width, force_terminal=terminal, color_system=None), RESUMED)
    return file.getvalue().splitlines()


def test_markup_is_wrapped_between_words_on_a_terminal() -> None:
    assert printed(True) == [
        "resumed  from step 100,",
        "runs/gpt/checkpoints/step-00000100-76d2b74c00000000",
        "and further words",
    ]


def test_markup_is_not_wrapped_in_a_file() -> None:
    text = "resumed  from step 100, runs/gpt/checkpoints/step-00000100-76d2b74c00000000 and further words"
    assert printed(False) == printed(True, width=len(text)) == [text]


def test_the_lines_of_a_run_are_not_wrapped_in_a_file() -> None:
    file = io.StringIO()
    sink = Terminal(400, 8, Console(file=file, width=40))
    sink.write(StartRecord("replicate2 mb4 fp32", 2, "cpu", 1234, 400, global_batch=8))
    sink.write(EventRecord("stopped", "after step 30 of 400, because loss no longer improves"))
    sink.write(EvaluationRecord(30, 1.5, {"accuracy": 0.75}, 360, 0.25))
    assert file.getvalue().splitlines() == [
        "replicate2 mb4 fp32  2 cpu ranks, 1,234 parameters, 400 steps of 8 samples",
        "stopped  after step 30 of 400, because loss no longer improves",
        "step  30/400  evaluation: loss 1.5000  accuracy 0.7500  (360 samples, 250.0 ms)",
    ]


def test_a_rank_goes_on_when_the_reader_of_its_output_has_ended() -> None:
    program = (
        "import sys; from onecurve.report.text import RankConsole; console = RankConsole()\n"
        "for _ in range(2000): console.print('x' * 100)\n"
        "sys.stderr.write('went on')"
    )
    done = subprocess.run(
        ["bash", "-c", f"{shlex.join([sys.executable, '-c', program])} | head -1"], capture_output=True, text=True
    )
    assert done.stderr == "went on"
