"""Where remote files of data are kept on a host."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from onecurve.describe.errors import OnecurveError
from onecurve.describe.units import parse_bytes


@dataclass(frozen=True)
class Cache:
    """A cache on the host's disk for data files in remote storage, such as `s3://…`.

    The order of the samples is known, so files are fetched before they are needed, and the file whose next use is
    farthest away is removed first. All ranks of a host share the cache, and a later run can use the files in it. Each
    run needs a folder of its own.

    Args:
        path: A folder on a disk of the host.
        size: Bytes that it may take, for example `"200G"`. It must hold the files of one window.
        peers: Let the hosts of the job give each other their files, so that each is read from the store once per job
            instead of once per host. Default: False.

    Example::

        cache = oc.Cache("/scratch/cache", size="200G", peers=True)  # for oc.Job(cache=cache)
    """

    path: str
    size: str | int
    peers: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.path, Path):
            object.__setattr__(self, "path", str(self.path))
        if not isinstance(self.path, str) or not self.path or "://" in self.path:
            raise OnecurveError(f"Cache: path must be a folder of the host, got {self.path!r}")
        if not isinstance(self.peers, bool):
            raise OnecurveError(f"Cache: peers must be True or False, got {self.peers!r}")
        self.bytes  # noqa: B018 - refuses a size that is none

    @cached_property
    def bytes(self) -> int:
        """The size as a number."""
        try:
            size = parse_bytes(self.size) if isinstance(self.size, str) else int(self.size)
        except (TypeError, ValueError) as error:
            raise OnecurveError(f"Cache: size: {error}") from None
        if size < 1:
            raise OnecurveError(f"Cache: size must be above 0, got {self.size!r}")
        return size
