"""Several sources, mixed by weights."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from onecurve.cache.cached_files import CachedFiles
from onecurve.data.file_table import FileTable
from onecurve.data.function_identity import Identity
from onecurve.data.mix_order import MixOrder, Mixture
from onecurve.data.order import Order
from onecurve.data.source import Source
from onecurve.describe.errors import OnecurveError


class MixedSource(Source):
    """Samples of several sources. Their pieces are numbered one after the other."""

    def __init__(self, weights: Mapping[str, float], sources: Mapping[str, Source]) -> None:
        if weights.keys() != sources.keys():
            raise OnecurveError(
                f"mix: each source needs a weight; there are weights for {', '.join(weights)}, and sources "
                f"{', '.join(sources)}"
            )
        if endless := [name for name, source in sources.items() if not source.has_end]:
            raise OnecurveError(f"mix: {', '.join(endless)} is a stream, which cannot be mixed; mix in your own lanes")
        self._sources = [sources[name] for name in weights]
        self._mixture = Mixture(list(weights.values()))
        self._first_pieces = np.concatenate(([0], np.cumsum([len(each.piece_sizes) for each in self._sources])))
        super().__init__(np.concatenate([each.piece_sizes for each in self._sources]), 1)
        self._length = self._mixture.positions_without_repetition([len(each) for each in self._sources])

    def __len__(self) -> int:
        """The samples after which one of the sources begins anew."""
        return self._length

    def read_at(self, index: int) -> Any:
        source = int(self._mixture.sources(index, index + 1)[0])
        return self._sources[source].read_at(self._mixture.taken(source, index))

    def read(self, piece: int, offset: int) -> Any:
        source = int(np.searchsorted(self._first_pieces, piece, side="right")) - 1
        return self._sources[source].read(piece - int(self._first_pieces[source]), offset)

    def order(self, seed: int) -> Order:
        orders = [each.order(seed + number) for number, each in enumerate(self._sources)]
        return MixOrder(self._mixture, orders, [len(each.piece_sizes) for each in self._sources])

    def identity(self) -> list[Identity]:
        return [one for each in self._sources for one in each.identity()]

    def index_path(self) -> Path:
        raise OnecurveError("mix: it cannot be prepared or packed; do that with each of its sources, and mix those")

    def remote_files(self) -> list[FileTable]:
        return [
            table.after(int(first))
            for first, each in zip(self._first_pieces[:-1], self._sources, strict=True)
            for table in each.remote_files()
        ]

    def use_cache(self, files: CachedFiles) -> None:
        for each in self._sources:
            each.use_cache(files)

    def verify(self) -> None:
        for each in self._sources:
            each.verify()
