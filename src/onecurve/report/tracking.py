"""Passes the records of a run on to experiment trackers."""

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from onecurve.describe.record import PAUSES, EndRecord, EvaluationRecord, Record, StartRecord, StepRecord
from onecurve.describe.tracker import Tracker

Call = Callable[[Tracker], None]
_MAX_END_SECONDS = 30.0
_MAX_WAITING = 10_000
"""Calls that may wait for slow trackers; of further steps they are not told."""


class Tracking:
    """A sink for rank 0 alone, because losses are equal on all ranks.

    Trackers are told by a thread of their own, because some write to a disk or a network. One that fails is left out
    from then on.
    """

    def __init__(
        self,
        trackers: Sequence[Tracker],
        folder: Path,
        facts: Mapping[str, str | float],
        global_batch: int,
        warn: Callable[[str], None],
    ) -> None:
        """`facts`: about the job, besides those of the StartRecord. `warn`: called with the text of a warning."""
        self._trackers, self._folder, self._facts = list(trackers), folder, facts
        self._global_batch, self._warn = global_batch, warn
        self._step = self._steps = 0
        self._peak_seconds = 0.0
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_over = self._has_left_out = False

    def write(self, record: Record) -> None:
        if isinstance(record, StepRecord):
            self._step = record.step
            if self._is_behind():
                return
            self._tell(lambda tracker: tracker.log(self._of_step(record), record.step))
        elif isinstance(record, EvaluationRecord):
            values = {"loss": record.loss, **record.metrics}
            named = {f"{record.kind}/{name}": value for name, value in values.items()}
            self._tell(lambda tracker: tracker.log(named, record.step))
        elif isinstance(record, StartRecord):
            self._steps, self._peak_seconds = record.steps, record.peak_seconds
            facts = {**self._facts, **_facts_of(record)}
            self._tell(lambda tracker: tracker.begin(str(self._folder), facts))
        elif isinstance(record, EndRecord):
            self._end("finished" if self._step >= self._steps else "stopped")

    def close(self) -> None:
        """Wait for the trackers, but not forever."""
        if self._thread is not None:
            self._end("interrupted")
            self._calls.put(None)
            self._thread.join(_MAX_END_SECONDS)
            if self._thread.is_alive():
                self._warn(f"a tracker has not ended after {_MAX_END_SECONDS:.0f} s; the run ends without it")

    def _end(self, how: str) -> None:
        if not self._is_over:
            self._is_over = True
            self._tell(lambda tracker: tracker.end(how))

    def _is_behind(self) -> bool:
        is_behind = self._calls.qsize() >= _MAX_WAITING
        if is_behind and not self._has_left_out:
            self._has_left_out = True
            self._warn("the trackers are slower than the training; some steps are not sent to them")
        return is_behind

    def _tell(self, call: Call) -> None:
        if not self._trackers:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="onecurve trackers", daemon=True)
            self._thread.start()
        self._calls.put(call)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            for tracker in list(self._trackers):
                try:
                    call(tracker)
                except Exception as error:  # a tracker must never end a training
                    self._trackers.remove(tracker)
                    name = type(tracker).__name__
                    self._warn(f"{name} failed and gets no more values: {type(error).__name__}: {error}")

    def _of_step(self, record: StepRecord) -> dict[str, float]:
        seconds = sum(record.seconds.values())
        training = seconds - sum(record.seconds.get(cause, 0.0) for cause in PAUSES)
        values = {
            "loss": record.loss,
            "gradient_norm": record.gradient_norm,
            "lr": record.lr,
            "seconds": seconds,
            "samples_per_second": self._global_batch / training if training > 0 else 0.0,
            "memory_bytes": float(record.memory),
        }
        if self._peak_seconds and training > 0:
            values["utilization"] = self._peak_seconds / training
        return {f"train/{name}": value for name, value in values.items()}


def _facts_of(record: StartRecord) -> dict[str, str | float]:
    return {
        "plan": record.plan,
        "ranks": record.ranks,
        "device": record.device,
        "parameters": record.parameters,
        "steps": record.steps,
        "global_batch": record.global_batch,
        "generation": record.generation,
    }
