"""How a generation ended, as its leader knows it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onecurve.describe.assignment import RankFailure
from onecurve.describe.errors import OnecurveError
from onecurve.describe.generation import SnapshotPoint
from onecurve.describe.host import HostReport
from onecurve.launch.failure import first_failure, is_cause
from onecurve.launch.process import status_text


@dataclass(frozen=True)
class GenerationEnd:
    """What the hosts have reported, and which hosts are lost."""

    reports: Sequence[tuple[str, HostReport]]
    """Name of a host, and what it has reported. Several hosts may have the same name."""
    lost: Sequence[str] = ()
    """Names of the hosts that are lost."""
    broken_at: float = 0.0
    """When the leader learned that the generation cannot go on, in seconds since the epoch; 0 if it could."""
    regroup: str = ""
    """Why the leader asked the ranks to hand over to the next generation; empty if it did not."""

    @property
    def result(self) -> str | None:
        """What rank 0 returned; None if the generation could not end."""
        if self.lost or self.failures:
            return None
        return next((report.result for _, report in self.reports if report.result is not None), None)

    @property
    def failures(self) -> list[RankFailure]:
        return [failure for _, report in self.reports for failure in report.failures]

    @property
    def is_failure(self) -> bool:
        """True if a host or a rank has failed by itself; False if all ranks have only left."""
        return bool(self.lost) or any(map(is_cause, self.failures))

    @property
    def step(self) -> int:
        """Steps that were done."""
        return max((report.step for _, report in self.reports), default=0)

    @property
    def facts_known(self) -> bool:
        """True if a rank lives that knows the `JobFacts`."""
        return any(report.facts_known for _, report in self.reports)

    def newest_snapshot(self, sizes: Mapping[int, int]) -> SnapshotPoint | None:
        """The newest snapshot that all ranks of a generation have completed. `sizes`: numbers of ranks of the
        generations that may have one."""
        points = [
            SnapshotPoint(generation=generation, ranks=size, step=step)
            for generation, size in sizes.items()
            for step in self._complete_steps(generation, size)
        ]
        return max(points, key=lambda point: (point.step, point.generation), default=None)

    def _complete_steps(self, generation: int, size: int) -> set[int]:
        found: dict[int, set[int]] = {}
        for _, report in self.reports:
            for kept in report.snapshots:
                if kept.generation == generation:
                    found.setdefault(kept.rank, set()).update(kept.steps)
        return set.intersection(*found.values()) if len(found) == size else set()

    def error(self) -> OnecurveError:
        """The cause, as the error that ends the run."""
        causes = [failure for failure in self.failures if is_cause(failure)]
        if causes or not self.lost:
            return first_failure(causes or self.failures)
        return OnecurveError(f"host {self.lost[0]} is lost: it no longer answers, or onecurve was killed there")

    def why(self) -> str:
        """The cause, for one line: `lost rank 2 on h1 (SIGKILL)`."""
        causes = [(host, failure) for host, report in self.reports for failure in report.failures]
        own = [(host, failure) for host, failure in causes if is_cause(failure)]
        if own:
            return "lost " + ", ".join(f"rank {failure.rank} on {host} ({_ending(failure)})" for host, failure in own)
        if self.lost:
            return f"lost host{'s' * (len(self.lost) > 1)} {', '.join(self.lost)}"
        if self.regroup:
            return self.regroup
        host, failure = min(causes, key=lambda cause: cause[1].time)
        return f"rank {failure.rank} on {host} lost its connections"


def _ending(failure: RankFailure) -> str:
    if failure.is_out_of_memory:
        return "out of memory"
    if failure.text:
        return failure.text.splitlines()[-1]
    return status_text(failure.exit_status)
