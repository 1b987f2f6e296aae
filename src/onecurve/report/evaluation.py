"""The output of `onecurve evaluate`."""

from collections.abc import Sequence

from onecurve.describe.evaluation import Evaluation, Int8Evaluation
from onecurve.describe.record import EvaluationRecord
from onecurve.describe.units import bytes_text, seconds_text


def evaluation_lines(found: Evaluation) -> list[str]:
    """The checkpoint, and a line for each dataset."""
    records = [found.evaluation, *([found.test] if found.test is not None else [])]
    return [f"{found.checkpoint}: after step {found.step:,}, with plan {found.plan}", *map(evaluation_text, records)]


def evaluation_text(record: EvaluationRecord) -> str:
    """One evaluation: `evaluation: loss 2.3145  accuracy 0.4100  (1,000 samples, 2.1 s)`."""
    metrics = "".join(f"  {name} {value:.4f}" for name, value in record.metrics.items())
    return (
        f"{record.kind}: loss {record.loss:.4f}{metrics}  ({record.samples:,} samples, {seconds_text(record.seconds)})"
    )


def int8_lines(compared: Sequence[Int8Evaluation]) -> list[str]:
    """A table of loss, metrics, size and speed."""
    names = list(compared[0].evaluation.metrics)
    titles = "".join(f"  {title:>10}" for title in (*names, "size", "samples/s"))
    lines = [f"{'':<18}  {'loss':>8}{titles}"]
    for each in compared:
        record = each.evaluation
        metrics = "".join(f"  {record.metrics[name]:>10.4f}" for name in names)
        kind = each.kind if each is compared[0] else f"int8, {each.kind}"
        speed = record.samples / record.seconds
        lines.append(f"{kind:<18}  {record.loss:>8.4f}{metrics}  {bytes_text(each.bytes):>10}  {speed:>10,.0f}")
    return lines
