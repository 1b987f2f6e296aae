"""Reads the same samples with other libraries for data in files: webdataset, MosaicML Streaming and litdata.

Each goes through all samples once, shuffled, without loader processes, as `onecurve.data` does beside it in the same
process. webdataset reads the same tar files. The other two read their own formats, into which the same
samples are converted first. What is not installed is left out.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

from onecurve.data.source import Source

Pass = Callable[[], int]
"""Reads all samples once, and returns their number."""


def over_peers(tar_files: Path, source: Source, scratch: Path, rounds: int) -> dict[str, float]:
    """Return our samples per second over those of each library."""
    found = {}
    for name, (module, build) in _LIBRARIES.items():
        if find_spec(module) is not None:
            read = build(tar_files, source, scratch / name)
            found[name] = round(statistics.median(_ratios(read, source, rounds)), 2)
    return found


def _ratios(read: Pass, source: Source, rounds: int) -> Iterator[float]:
    for number in range(rounds + 1):
        order = source.order(number)
        begin = time.perf_counter()
        count = read()
        middle = time.perf_counter()
        for sample in order.samples(0, len(source)):
            source.read(sample.file, sample.offset)
        end = time.perf_counter()
        assert count == len(source), (count, len(source))
        if number:  # the first one fills the page cache
            yield (middle - begin) / (end - middle)


def _contents(source: Source) -> Iterator[dict[str, bytes]]:
    """The samples of tar files, by the extensions of their members."""
    for number in range(len(source)):
        yield {name: content for name, content in source[number].items() if name != "__key__"}


def _webdataset(tar_files: Path, _: Source, __: Path) -> Pass:
    import webdataset

    urls = [str(path) for path in sorted(tar_files.glob("*.tar"))]

    def read() -> int:
        dataset = webdataset.WebDataset(urls, shardshuffle=len(urls), empty_check=False).shuffle(1000)
        return sum(1 for _ in dataset)

    return read


def _mosaicml(_: Path, source: Source, folder: Path) -> Pass:
    from streaming import MDSWriter, StreamingDataset

    columns = dict.fromkeys(next(_contents(source)), "bytes")
    with MDSWriter(out=str(folder), columns=columns) as writer:
        for sample in _contents(source):
            writer.write(sample)
    dataset = StreamingDataset(local=str(folder), shuffle=True, batch_size=1)
    return lambda: sum(1 for _ in dataset)


def _litdata(_: Path, source: Source, folder: Path) -> Pass:
    import litdata
    from litdata.streaming.writer import BinaryWriter

    folder.mkdir()
    writer = BinaryWriter(str(folder), chunk_bytes=1 << 21)
    for number, sample in enumerate(_contents(source)):
        writer[number] = sample
    writer.done()
    writer.merge()
    dataset = litdata.StreamingDataset(str(folder), shuffle=True, drop_last=False)
    return lambda: sum(1 for _ in dataset)


_LIBRARIES: dict[str, tuple[str, Callable[[Path, Source, Path], Pass]]] = {
    "webdataset": ("webdataset", _webdataset),
    "mosaicml_streaming": ("streaming", _mosaicml),
    "litdata": ("litdata", _litdata),
}
