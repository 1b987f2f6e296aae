"""What an experiment tracker must be able to do."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable


@runtime_checkable
class Tracker(Protocol):
    """Receives the values of a run, on rank 0. An error that it raises becomes a warning; the training goes on.

    Example::

        class Printed:
            def begin(self, folder, facts):
                print(folder, facts["plan"])

            def log(self, values, step):
                print(step, values)

            def end(self, how):
                print(how)

        oc.Job(
            model=MyModel,
            data=lambda: MyDataset(),
            loss=oc.loss.cross_entropy,
            optimizer=oc.AdamW(lr=3e-4),
            global_batch=256,
            epochs=3,
            trackers=["tensorboard", Printed()],
        )
    """

    def begin(self, folder: str, facts: Mapping[str, str | float]) -> None:
        """A run begins, or is continued. `folder`: the run's. `facts`: what does not change, such as the plan."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """After a step or an evaluation: `train/loss`, `train/lr`, `evaluation/accuracy`, …"""

    def end(self, how: str) -> None:
        """The run has ended: `finished`, `stopped` before its last step, or `interrupted`, for example by the loss of a
        rank."""
