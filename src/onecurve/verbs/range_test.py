"""onecurve tune --range-test: which learning rates are worth trying? One run, in which the rate grows, shows it."""

from collections.abc import Callable, Sequence
from pathlib import Path

from onecurve.data.training_data import open_data
from onecurve.describe.errors import InterruptError, OnecurveError
from onecurve.describe.record import StepRecord
from onecurve.describe.requests import RunRequest, Trial
from onecurve.describe.tuning import RangeTest
from onecurve.device.files import replace_file
from onecurve.job.script import load_job
from onecurve.job.script_path import Script, script_path
from onecurve.page.range_page import range_page
from onecurve.runs.records import read_records
from onecurve.runtime.manual import refuse_manual_backward
from onecurve.study.learning_rates import smoothed, steepest
from onecurve.study.search_space import Range, SearchSpace, read_space
from onecurve.verbs.run import launch_run

PAGE = "range-test.html"
_LEAST_POINTS = 10


def range_test(
    script: Script,
    arguments: Sequence[str],
    *,
    out: str | Path | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> RangeTest:
    """Train once while the learning rate grows, as `onecurve tune --range-test` does.

    Args:
        script: The Python file that defines `job()`, or that function itself.
        arguments: Arguments of `job()`; one is the learning rate with its range, such as `"lr=1e-6..1"`. It must be
            what the job gives to its optimizer. The job's schedule is not used.
        out: Folder of the run. Default: None, `runs/range-` and the script's name. An earlier test in it is replaced.
        say: A function that is called with short texts about what is being done. Default: they are dropped.

    Returns:
        The loss by learning rate, and the rate at which it falls fastest.

    Example::

        test = oc.range_test("train.py", ["lr=1e-6..1", "steps=200"])
        print(test.fastest)
    """
    path = script_path(script, "range_test")
    space = read_space(arguments)
    name, rates = _rates(space)
    folder = Path(out) if out is not None else Path("runs") / f"range-{path.stem}"
    words = space.arguments({name: rates.text(rates.high)})
    say("reading the job")
    job = load_job(path, words)
    refuse_manual_backward(job, f"{path}: it cannot be tested")
    data = open_data(job)
    trial = Trial(steps=data.steps, epoch_samples=data.order.size, lr_factor=rates.low / rates.high)
    request = RunRequest(
        script=str(path), arguments=tuple(words), out=str(folder), fresh=True, quiet=True, check=False, trial=trial
    )
    say(f"{data.steps:,} steps with {name} from {rates.low:g} to {rates.high:g}")
    try:
        launch_run(request, None, say)
    except InterruptError:
        raise
    except OnecurveError:
        if not _losses(folder):  # it has diverged, which is what the test looks for
            raise
    smooth = smoothed(_losses(folder))
    if len(smooth) < _LEAST_POINTS:
        raise OnecurveError(
            f"range test: only {len(smooth)} steps have a finite loss; give more steps or smaller rates"
        )
    test = RangeTest(
        out=str(folder),
        argument=name,
        points=tuple(smooth),
        fastest=steepest(smooth),
        lowest=min(smooth, key=lambda point: point[1])[0],
    )
    replace_file(folder / PAGE, [range_page(test).encode()])
    return test


def _rates(space: SearchSpace) -> tuple[str, Range]:
    """The searched argument, which is the learning rate."""
    (name, rates), *others = space.searched.items()
    if others or not isinstance(rates, Range) or not rates.is_logarithmic:
        raise OnecurveError("range test: give one range of rates that spans a factor of ten, such as lr=1e-6..1")
    return name, rates


def _losses(folder: Path) -> list[tuple[float, float]]:
    try:
        return [(record.lr, record.loss) for record in read_records(folder) if isinstance(record, StepRecord)]
    except FileNotFoundError:
        return []
