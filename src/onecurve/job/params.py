"""How a job's embedding tables are trained: which servers hold their rows, and how old rows may be."""

import re
from dataclasses import dataclass

from onecurve.describe.errors import OnecurveError

_LOCAL = re.compile(r"local://([1-9][0-9]{0,3})")
_ETCD = re.compile(r"etcds?://[^/@\s]+/[A-Za-z0-9._-]+")


@dataclass(frozen=True)
class Params:
    """How a job's embedding tables are trained: which servers hold their rows, and how old rows may be.

    Args:
        address: `"none"`: the ranks hold the rows. `"local://2"`: two servers on this host, which live as long as the
            run. `"etcd://HOST:PORT,…/NAME"` (`etcds` for TLS to etcd): those that `onecurve serve` has started with the
            same address, on any machines. Default: `"none"`.
        staleness: With 2, the rows of a step lack the updates of the two steps before it. They are fetched, and updated
            on servers, while other steps run. `clip` then limits the gradient norm without the tables. The
            result does not depend on who holds the rows. Default: 0.
        warmup: Number of steps at the start in which rows have all updates. Default: 0.
        warmup_data: Fraction of the data that the warmup repeats; after the warmup, the full data starts from its
            beginning. With `epochs`, the steps of the warmup are additional. Default: 1.0, the warmup uses the full
            data and adds no steps.
        replicas: Copies of each row, 1 or 2, on different servers. With two, the training goes on when a server dies,
            and computes the same. Default: 2.
        mode: `"sync"`: all ranks compute each step together. `"async"`: workers compute different steps at the same
            time, each with weights that lack the updates of the others; the parameters are on the servers too. The loss
            curve then depends on timing. Default: `"sync"`.
        workers: Processes that this host starts, for `mode="async"`. `onecurve work` adds others. Default: 1.
        tls: Folder with `ca.pem`, `cert.pem` and `key.pem`, with which connections to servers on other machines are
            encrypted. Default: None.

    Example::

        params = oc.Params("local://2", staleness=1)  # for oc.Job(params=params)
    """

    address: str = "none"
    staleness: int = 0
    warmup: int = 0
    warmup_data: float = 1.0
    replicas: int = 2
    mode: str = "sync"
    workers: int = 1
    tls: str | None = None

    def __post_init__(self) -> None:
        known = isinstance(self.address, str) and (
            not self.has_servers or _LOCAL.fullmatch(self.address) or self.is_etcd
        )
        if not known:
            raise OnecurveError(
                "Params: address must be 'none', 'local://N', for N servers on this host, or "
                f"'etcd://HOST:PORT,…/NAME', for those of `onecurve serve`; got {self.address!r}"
            )
        for name, value in (("staleness", self.staleness), ("warmup", self.warmup)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise OnecurveError(f"Params: {name} must be an integer of at least 0, got {value!r}")
        if self.warmup and not self.staleness:
            raise OnecurveError(
                f"Params: warmup={self.warmup} has no effect without staleness; set staleness, or leave it out"
            )
        if not isinstance(self.warmup_data, int | float) or not 0 < self.warmup_data <= 1:
            raise OnecurveError(f"Params: warmup_data must be above 0 and at most 1, got {self.warmup_data!r}")
        if self.warmup_data < 1 and not self.warmup:
            raise OnecurveError(
                f"Params: warmup_data={self.warmup_data:g} has no effect without warmup; set warmup too"
            )
        if self.replicas not in (1, 2) or isinstance(self.replicas, bool):
            raise OnecurveError(f"Params: replicas must be 1 or 2, got {self.replicas!r}")
        self._check_mode()

    def _check_mode(self) -> None:
        if self.mode not in ("sync", "async"):
            raise OnecurveError(f"Params: mode must be 'sync' or 'async', got {self.mode!r}")
        if not isinstance(self.workers, int) or isinstance(self.workers, bool) or self.workers < 1:
            raise OnecurveError(f"Params: workers must be an integer of at least 1, got {self.workers!r}")
        if not self.is_async and self.workers > 1:
            raise OnecurveError(
                f"Params: workers={self.workers} has no effect without mode='async'; set it, or use more ranks"
            )
        if self.is_async and not self.has_servers:
            raise OnecurveError(
                "Params: mode='async' needs servers, which hold the weights for all workers: set address, for example "
                "'local://2'"
            )
        if self.is_async and self.staleness:
            raise OnecurveError(
                f"Params: staleness={self.staleness} says exactly which updates rows lack, but with mode='async' that "
                "depends on timing; use only one of the two"
            )

    @property
    def has_servers(self) -> bool:
        """False if the ranks hold the rows."""
        return self.address != "none"

    @property
    def is_async(self) -> bool:
        """True if workers compute different steps at the same time."""
        return self.mode == "async"

    @property
    def is_etcd(self) -> bool:
        """True for servers that agree through etcd."""
        return is_etcd_address(self.address)

    @property
    def servers(self) -> int:
        """The number of servers that a run waits for before it begins."""
        found = _LOCAL.fullmatch(self.address)
        return int(found[1]) if found is not None else 1


def is_etcd_address(address: str) -> bool:
    """True for `etcd://HOST:PORT,…/NAME`."""
    return _ETCD.fullmatch(address) is not None
