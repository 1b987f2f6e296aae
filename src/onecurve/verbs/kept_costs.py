"""The traced costs of a job, kept while its run goes on: each question about a plan is answered by a new process."""

import os
from collections.abc import Sequence
from pathlib import Path

from onecurve.describe.cluster import Cluster
from onecurve.describe.convert import from_json, to_json
from onecurve.describe.costs import JobCosts
from onecurve.describe.plan import Precision
from onecurve.device.scratch import scratch_folder


class KeptCosts:
    """A file in the temporary folder of the start, which only this user can read. A start has one job."""

    def __init__(self, cluster: Cluster, precisions: Sequence[Precision]) -> None:
        """`cluster`: what is traced and timed depends on its devices, the ranks per host and the kinds of hosts, not on
        the number of hosts."""
        folder = scratch_folder()
        kinds = f"{cluster.device_kind}-{cluster.ranks_per_host}-{len(cluster.groups)}"
        name = f"costs-{kinds}-{'-'.join(precisions)}.json"
        self._path = folder / name if folder is not None else None

    def load(self) -> JobCosts | None:
        """The costs that an earlier question has traced; None if there was none."""
        if self._path is None or not self._path.exists():
            return None
        return from_json(JobCosts, self._path.read_bytes(), str(self._path))

    def keep(self, costs: JobCosts) -> None:
        if self._path is not None:
            part = Path(f"{self._path}.{os.getpid()}")
            part.write_text(to_json(costs))
            part.replace(self._path)  # another question may be asked at the same time
