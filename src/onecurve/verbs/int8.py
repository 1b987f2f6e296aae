"""onecurve evaluate --int8: what integer inference of a trained model loses and gains, on one device."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from onecurve.checkpoint.int8 import KINDS, quantize_for_inference, tensor_bytes
from onecurve.checkpoint.loader import Checkpoint
from onecurve.describe.errors import OnecurveError
from onecurve.describe.evaluation import Int8Evaluation
from onecurve.describe.plan import default_plan
from onecurve.job.job import Job
from onecurve.job.script import load_job
from onecurve.runtime.build import build_run
from onecurve.runtime.run_settings import RunSettings
from onecurve.verbs.run_checkpoint import find_checkpoint, origin_of, with_saved_weights


def evaluate_int8(
    run: str | Path,
    arguments: Sequence[str] = (),
    *,
    best: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> list[Int8Evaluation]:
    """Evaluate a run's model as it was trained and with int8 weights, as `onecurve evaluate --int8` does.

    Linear layers and embeddings are quantized, with one scale per row. `dynamic` also quantizes the inputs of linear
    layers, so that these compute in int8. Needs the extra `onecurve[int8]` (torchao).

    Args:
        run: The run's folder, for example `"runs/gpt"`.
        arguments: Arguments of the run's `job()` that are to differ, as texts `"name=value"`. Default: none.
        best: Use the checkpoint of the best evaluation instead of the newest. Default: False.
        say: A function that is called with short texts about what is being done. Default: they are dropped.

    Returns:
        Loss, size and speed of the model as trained, with int8 weights, and with int8 weights and inputs.

    Example::

        for each in oc.evaluate_int8("runs/first"):
            print(each.kind, each.evaluation.loss, each.bytes)
    """
    folder = Path(run)
    checkpoint, origin = find_checkpoint(folder, best), origin_of(folder, arguments)
    job = load_job(Path(origin.script), origin.arguments)
    if job.evaluate is None:
        raise OnecurveError(f"{origin.script}: the job has no evaluation data; add evaluate=onecurve.Evaluate(…)")
    job = replace(with_saved_weights(job), params=None, save=None, cache=None)
    return [_evaluated(job, checkpoint, kind, say) for kind in ("", *KINDS)]


def _evaluated(job: Job, checkpoint: Checkpoint, kind: str, say: Callable[[str], None]) -> Int8Evaluation:
    say(f"evaluating {f'int8, {kind}' if kind else 'as trained'}")
    with build_run(job, default_plan(job.global_batch, 1), RunSettings()) as run:
        run.load_model(checkpoint)
        if kind:
            quantize_for_inference(run.model, kind)
        run.evaluate()  # the first one warms up
        return Int8Evaluation(kind=kind or "as trained", bytes=tensor_bytes(run.model), evaluation=run.evaluate())
