"""The output of `onecurve evaluate`."""

from onecurve.describe.evaluation import Evaluation
from onecurve.describe.record import EvaluationRecord
from onecurve.describe.units import seconds_text


def evaluation_lines(found: Evaluation) -> list[str]:
    """The checkpoint, and a line for each dataset."""
    records = [found.evaluation, *([found.test] if found.test is not None else [])]
    return [f"{found.checkpoint}: after step {found.step:,}, as {found.plan}", *map(evaluation_text, records)]


def evaluation_text(record: EvaluationRecord) -> str:
    """One evaluation: `evaluation: loss 2.3145  accuracy 0.4100  (1,000 samples, 2.1 s)`."""
    metrics = "".join(f"  {name} {value:.4f}" for name, value in record.metrics.items())
    return (
        f"{record.kind}: loss {record.loss:.4f}{metrics}  ({record.samples:,} samples, {seconds_text(record.seconds)})"
    )
