"""What a map-style dataset has."""

from typing import Any, Protocol


class Dataset(Protocol):
    """A map-style dataset: `dataset[i]` returns one sample as a pair `(input, target)`."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Any: ...
