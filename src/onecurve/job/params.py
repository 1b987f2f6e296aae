"""Which servers hold the rows of a job's embedding tables."""

import re
from dataclasses import dataclass

from onecurve.describe.errors import OnecurveError

_LOCAL = re.compile(r"local://([1-9][0-9]{0,3})")


@dataclass(frozen=True)
class Params:
    """Row servers: processes that hold the rows of a job's embedding tables.

    Args:
        address: `"local://2"`: two servers on this host, which live as long as the run.
        replicas: Copies of each row, 1 or 2, on different servers. With two, the training goes on when a server dies,
            and computes the same. Default: 2.

    Example::

        params = oc.Params("local://2", replicas=1)  # for oc.Job(params=params)
    """

    address: str
    replicas: int = 2

    def __post_init__(self) -> None:
        if not isinstance(self.address, str) or _LOCAL.fullmatch(self.address) is None:
            raise OnecurveError(
                f"Params: address must be 'local://N', for N servers on this host; got {self.address!r}"
            )
        if self.replicas not in (1, 2) or isinstance(self.replicas, bool):
            raise OnecurveError(f"Params: replicas must be 1 or 2, got {self.replicas!r}")

    @property
    def servers(self) -> int:
        """The number of servers on this host."""
        found = _LOCAL.fullmatch(self.address)
        assert found is not None
        return int(found[1])
