"""Which servers hold the rows of a job's embedding tables."""

import re
from dataclasses import dataclass

from onecurve.describe.errors import OnecurveError

_LOCAL = re.compile(r"local://([1-9][0-9]{0,3})")
_ETCD = re.compile(r"etcds?://[^/@\s]+/[A-Za-z0-9._-]+")


@dataclass(frozen=True)
class Params:
    """Row servers: processes that hold the rows of a job's embedding tables.

    Args:
        address: `"local://2"`: two servers on this host, which live as long as the run. `"etcd://HOST:PORT,…/NAME"`
            (`etcds` for TLS to etcd): those that `onecurve serve` has started with the same address, on any machines.
        replicas: Copies of each row, 1 or 2, on different servers. With two, the training goes on when a server dies,
            and computes the same. Default: 2.
        tls: Folder with `ca.pem`, `cert.pem` and `key.pem`, with which connections to servers on other machines are
            encrypted. Default: None.

    Example::

        params = oc.Params("local://2", replicas=1)  # for oc.Job(params=params)
    """

    address: str
    replicas: int = 2
    tls: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.address, str) or not (_LOCAL.fullmatch(self.address) or self.is_etcd):
            raise OnecurveError(
                "Params: address must be 'local://N', for N servers on this host, or 'etcd://HOST:PORT,…/NAME', for "
                f"those of `onecurve serve`; got {self.address!r}"
            )
        if self.replicas not in (1, 2) or isinstance(self.replicas, bool):
            raise OnecurveError(f"Params: replicas must be 1 or 2, got {self.replicas!r}")

    @property
    def is_etcd(self) -> bool:
        """True for servers that agree through etcd."""
        return _ETCD.fullmatch(self.address) is not None

    @property
    def servers(self) -> int:
        """The number of servers that a run waits for before it begins."""
        found = _LOCAL.fullmatch(self.address)
        return int(found[1]) if found is not None else 1
