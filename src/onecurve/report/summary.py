"""The last lines of `onecurve run` and `onecurve export`."""

from onecurve.describe.summary import ExportSummary, RunSummary
from onecurve.describe.units import bytes_text, seconds_text


def summary_lines(summary: RunSummary) -> list[str]:
    """How a run ended."""
    status = {"finished": "done", "early_stopping": "stopped early"}.get(
        summary.ended, f"interrupted by {summary.ended}"
    )
    own = summary.steps - summary.first_step
    of_earlier_starts = f", the last {own:,}" if summary.first_step else ""
    lines = [
        f"{status}: {summary.steps:,} of {summary.steps_planned:,} steps{of_earlier_starts} in "
        f"{seconds_text(summary.seconds)}, "
        f"{summary.samples_per_second:,.0f} samples/s, final loss {summary.loss:.4f}"
    ]
    if summary.predicted_step_seconds is not None:
        lines.append(
            f"time per step: {seconds_text(summary.step_seconds)} measured, "
            f"{seconds_text(summary.predicted_step_seconds)} predicted"
        )
    for record in filter(None, (summary.evaluation, summary.test)):
        metrics = "".join(f", {name} {value:.4f}" for name, value in record.metrics.items())
        lines.append(f"{record.kind}: loss {record.loss:.4f}{metrics}")
    if summary.best is not None and (summary.evaluation is None or summary.best.step != summary.evaluation.step):
        lines.append(f"best {summary.best.watch}: {summary.best.value:.4f} at step {summary.best.step}")
    lines.append(f"weights: {summary.out}/weights.safetensors, after step {summary.steps}")
    if summary.best is not None and summary.best_weights is not None:
        lines.append(f"best weights: {summary.best_weights}, after step {summary.best.step}")
    return lines


def export_lines(summary: ExportSummary) -> list[str]:
    """What an export wrote, and how the evaluation loss changed."""
    size = f"{summary.tensors:,} tensors, {bytes_text(summary.bytes)}"
    lines = [f"{summary.path}: {size}, from step {summary.step} ({summary.source})"]
    if summary.loss is not None and summary.exported_loss is not None:
        change = summary.exported_loss - summary.loss
        lines.append(f"evaluation: loss {summary.exported_loss:.6f}, was {summary.loss:.6f} ({change:+.6f})")
    return lines
