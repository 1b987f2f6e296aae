"""onecurve tune: which arguments of a job give the best result?"""

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from onecurve.describe.errors import OnecurveError
from onecurve.describe.tuning import Tuning
from onecurve.job.script_path import Script, script_path


def tune(
    script: Script,
    arguments: Sequence[str],
    *,
    trials: int = 20,
    out: str | Path | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Tuning:
    """Search for the best arguments of a job, as `onecurve tune` does.

    Every trial is a run, in the folder `trials` of the study. As many run at the same time as the devices of this host
    hold. A trial that is worse than others after a sixth or after half of its steps is pruned. A study that was
    stopped continues when it is started again; several processes and hosts may work on it at the same time, if they
    share its folder.

    Args:
        script: The Python file that defines `job()`, or that function itself.
        arguments: Arguments of `job()`. `"lr=1e-5..1e-2"` and `"width=128,256,512"` are searched; others, such as
            `"steps=1000"`, are the same in all trials.
        trials: Number of trials, including pruned ones. Default: 20.
        out: The study's folder. Default: None, `runs/tune-` and the script's name.
        say: A function that is called with short texts about what is being done. Default: they are dropped.

    Returns:
        All trials, the best first, and the command that trains with the best arguments.

    Example::

        tuning = oc.tune("train.py", ["lr=1e-4..1e-2", "steps=500"], trials=16)
        print(tuning.command)
    """
    path = script_path(script, "tune")
    if trials < 1:
        raise OnecurveError(f"tune: trials must be at least 1, got {trials}")
    if find_spec("optuna") is None:
        raise OnecurveError("tune: Optuna is not installed; run pip install 'onecurve[tune]'")
    from onecurve.verbs.tune_work import search

    return search(path, arguments, trials, Path(out) if out is not None else Path("runs") / f"tune-{path.stem}", say)
