"""What a source of samples is to those that work on its pieces, one after the other."""

from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from onecurve.data.function_identity import Identity


class Pieces(Protocol):
    """Samples by piece, and by offset in it."""

    @property
    def piece_sizes(self) -> NDArray[np.int64]:
        """Samples of each piece."""

    def read(self, piece: int, offset: int) -> Any:
        """Return a sample, or `SKIPPED`."""

    def identity(self) -> list[Identity]:
        """What decides which samples there are: the files, then each function."""

    def index_path(self) -> Path:
        """The file of the index. What is found out about the samples is stored beside it."""
