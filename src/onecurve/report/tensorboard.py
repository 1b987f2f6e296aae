"""Writes records as TensorBoard events (extra `tensorboard`); view them with `tensorboard --logdir runs`."""

import time
from pathlib import Path

from onecurve.describe.errors import OnecurveError
from onecurve.describe.record import EvaluationRecord, Record, StepRecord


class TensorBoard:
    """A sink for rank 0 alone, because losses are equal on all ranks."""

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError:
            raise OnecurveError(
                "--tensorboard: the package 'tensorboard' is not installed; run pip install 'onecurve[tensorboard]'"
            ) from None
        self._event, self._summary = Event, Summary
        self._writer = EventFileWriter(str(folder))

    def write(self, record: Record) -> None:
        if isinstance(record, StepRecord):
            seconds = sum(record.seconds.values())
            values = {"loss": record.loss, "gradient_norm": record.gradient_norm, "lr": record.lr, "seconds": seconds}
            self._add("train", record.step, values)
        elif isinstance(record, EvaluationRecord):
            self._add(record.kind, record.step, {"loss": record.loss, **record.metrics})

    def close(self) -> None:
        self._writer.close()

    def _add(self, group: str, step: int, values: dict[str, float]) -> None:
        scalars = [self._summary.Value(tag=f"{group}/{name}", simple_value=value) for name, value in values.items()]
        event = self._event(wall_time=time.time(), step=step, summary=self._summary(value=scalars))
        self._writer.add_event(event)
