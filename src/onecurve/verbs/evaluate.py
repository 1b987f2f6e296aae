"""onecurve evaluate: the loss and the metrics of a run's checkpoint, on all ranks."""

from collections.abc import Callable, Sequence
from pathlib import Path

from onecurve.describe.convert import from_json, read_toml, to_json
from onecurve.describe.errors import OnecurveError
from onecurve.describe.evaluation import Evaluation
from onecurve.describe.plan import Plan
from onecurve.describe.requests import InferenceRequest
from onecurve.launch.local import LocalRanks
from onecurve.planner.plan_choice import read_plan
from onecurve.runs.folder import PLAN
from onecurve.verbs.program import PROGRAM
from onecurve.verbs.run_checkpoint import checkpoints_of, find_checkpoint, origin_of


def evaluate(
    run: str | Path,
    arguments: Sequence[str] = (),
    *,
    best: bool = False,
    plan: str | Plan | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Evaluation:
    """Evaluate a checkpoint of a run, as `onecurve evaluate` does: each sample once, on all ranks.

    Args:
        run: The run's folder, for example `"runs/gpt"`.
        arguments: Arguments of the run's `job()` that are to differ, as texts `"name=value"`. Default: none.
        best: Use the checkpoint of the best evaluation instead of the newest. Default: False.
        plan: How to split the model: a `onecurve.Plan`, its text, or the path of a plan.toml. Default: None, the run's.
        say: A function that is called with short texts about what is being done. Default: they are dropped.

    Returns:
        Loss and metrics on the job's evaluation data, and on its test data if it has some.

    Example::

        result = oc.evaluate("runs/first")
        print(result.evaluation.loss, result.evaluation.metrics)
    """
    request = inference_request(Path(run), arguments, best, plan)
    return from_json(Evaluation, ask_ranks(request, "evaluate", say).encode(), "evaluation")


def inference_request(folder: Path, arguments: Sequence[str], best: bool, plan: str | Plan | None) -> InferenceRequest:
    """What the ranks are asked about a checkpoint."""
    checkpoint = find_checkpoint(folder, best)
    origin = origin_of(folder, arguments)
    chosen = read_plan(plan) if plan is not None else read_toml(Plan, folder / PLAN)
    if chosen is None:
        raise OnecurveError("evaluate: 'auto' is for onecurve run; give a plan, or none for that of the run")
    return InferenceRequest(
        script=origin.script,
        arguments=origin.arguments,
        checkpoints=checkpoints_of(folder),
        checkpoint=checkpoint.name,
        plan=chosen,
        code={} if arguments else origin.code,  # other arguments may be values that functions use
    )


def ask_ranks(request: InferenceRequest, verb: str, say: Callable[[str], None]) -> str:
    """Let the ranks of the plan work; return what rank 0 answers."""
    text = to_json(request)
    with LocalRanks(PROGRAM, verb, text, say) as launcher:
        return launcher.ask(verb, text, request.plan.mesh.size)
