"""A file of data that is not on this host."""

import msgspec
import xxhash


class RemoteFile(msgspec.Struct, frozen=True):
    """A file, as the index of its data describes it."""

    location: str
    """The folder of the data: a URL that fsspec knows."""
    path: str
    size: int
    stamp: int
    """Another one if the file was written again."""
    hash: int
    """XXH3 of its content."""

    @property
    def key(self) -> str:
        """Its name in a cache. A file that was written again has another one."""
        text = f"{self.location}\n{self.path}\n{self.size}\n{self.stamp}\n{self.hash}"
        return xxhash.xxh3_128_hexdigest(text.encode())

    @property
    def name(self) -> str:
        """For a person."""
        return f"{self.location.rstrip('/')}/{self.path}"
