"""Writes TensorBoard events (extra `tensorboard`); view them with `tensorboard --logdir runs`."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class TensorBoard:
    """A tracker. The events are in the folder `tensorboard` of the run."""

    def __init__(self) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary, self._open = Event, Summary, EventFileWriter
        self._writer: Any = None

    def begin(self, folder: str, facts: Mapping[str, str | float]) -> None:
        self._writer = self._writer or self._open(str(Path(folder) / "tensorboard"))
        text = "\n".join(f"    {name}: {value}" for name, value in facts.items())
        value = self._summary.Value(tag="run/facts")
        value.metadata.plugin_data.plugin_name = "text"
        value.tensor.dtype = 7  # a string
        value.tensor.string_val.append(text.encode())
        self._add([value], 0)

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._add([self._summary.Value(tag=name, simple_value=value) for name, value in values.items()], step)

    def end(self, how: str) -> None:
        del how
        self._writer.close()
        self._writer = None

    def _add(self, values: list[Any], step: int) -> None:
        self._writer.add_event(self._event(wall_time=time.time(), step=step, summary=self._summary(value=values)))
