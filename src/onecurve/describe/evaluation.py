"""What `onecurve evaluate` finds."""

from dataclasses import dataclass

from onecurve.describe.record import EvaluationRecord


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The loss and the metrics of a checkpoint."""

    checkpoint: str
    step: int
    """Training steps that its weights have seen."""
    plan: str
    """How the model was split for this."""
    evaluation: EvaluationRecord
    test: EvaluationRecord | None = None
    """On the job's test data; None if it has none."""


@dataclass(frozen=True, kw_only=True)
class Int8Evaluation:
    """A model with or without int8 weights."""

    kind: str
    """`as trained`, `weight-only` (int8 weights) or `dynamic` (int8 weights, and int8 inputs of linear layers)."""
    bytes: int
    """Of parameters and buffers."""
    evaluation: EvaluationRecord
