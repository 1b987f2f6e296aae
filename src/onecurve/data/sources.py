"""The sources of data that a user writes into a job."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from onecurve.data.file_source import FileSource
from onecurve.data.folder_source import FolderSource
from onecurve.data.mix import MixedSource
from onecurve.data.prepared import PreparedSource
from onecurve.data.source import Source
from onecurve.data.stream import StreamSource
from onecurve.data.token_source import TokenSource
from onecurve.formats.json_lines import JsonLinesFormat
from onecurve.formats.parquet_file import ParquetFormat
from onecurve.formats.tar_file import TarFormat
from onecurve.formats.tf_record import TfRecordFormat

_WINDOW = 16
_LANES = 64


def jsonl(path: str, *, window: int = _WINDOW, bad: str = "stop", index: str | None = None) -> FileSource:
    """JSON lines, plain or compressed (.gz, .zst): each sample is the JSON value of one line, for example a dict.

    Args:
        path: A folder, a file, a glob such as `"data/*.jsonl"`, or a URL that fsspec knows.
        window: Number of files that are shuffled together. Default: 16.
        bad: How to handle a damaged sample: `"stop"` ends the run; `"skip"` leaves the sample out and counts it in the
            records. Default: `"stop"`.
        index: The file of the index. Default: None, the one that `onecurve index PATH` writes into the folder.

    Example::

        oc.data.jsonl("reviews/").map(lambda line: (encode(line["text"]), line["stars"]))
    """
    return FileSource(path, JsonLinesFormat(), window, bad, index)


def parquet(
    path: str,
    *,
    columns: Sequence[str] | None = None,
    window: int = _WINDOW,
    bad: str = "stop",
    index: str | None = None,
) -> FileSource:
    """Parquet files: each sample is a dict of column → value.

    Args:
        path: A folder, a file, a glob, or a URL that fsspec knows.
        columns: Columns to read. Default: None, all.
        window: Number of row groups that are shuffled together; they are in memory. Default: 16.
        bad: How to handle a damaged sample: `"stop"` ends the run; `"skip"` leaves the sample out and counts it in the
            records. Default: `"stop"`.
        index: The file of the index. Default: None, the one that `onecurve index PATH` writes into the folder.

    Example::

        oc.data.parquet("clicks/", columns=["user", "item", "clicked"])
    """
    return FileSource(path, ParquetFormat(columns), window, bad, index)


def tar(path: str, *, window: int = _WINDOW, bad: str = "stop", index: str | None = None) -> FileSource:
    """Tar files in the layout of WebDataset: each sample is a dict of extension → bytes, and its name as `__key__`.

    Args:
        path: A folder, a file, a glob, or a URL that fsspec knows.
        window: Number of files that are shuffled together. Default: 16.
        bad: How to handle a damaged sample: `"stop"` ends the run; `"skip"` leaves the sample out and counts it in the
            records. Default: `"stop"`.
        index: The file of the index. Default: None, the one that `onecurve index PATH` writes into the folder.

    Example::

        oc.data.tar("images/").map(lambda sample: (decode(sample["jpg"]), int(sample["cls"])))
    """
    return FileSource(path, TarFormat(), window, bad, index)


def tfrecord(path: str, *, window: int = _WINDOW, bad: str = "stop", index: str | None = None) -> FileSource:
    """TFRecord files of tf.train.Example: each sample is a dict of feature → numpy array, or list of bytes.

    Args:
        path: A folder, a file, a glob, or a URL that fsspec knows.
        window: Number of files that are shuffled together. Default: 16.
        bad: How to handle a damaged sample: `"stop"` ends the run; `"skip"` leaves the sample out and counts it in the
            records. Default: `"stop"`.
        index: The file of the index. Default: None, the one that `onecurve index PATH` writes into the folder.

    Example::

        oc.data.tfrecord("records/").map(lambda example: (example["x"], example["y"][0]))
    """
    return FileSource(path, TfRecordFormat(), window, bad, index)


def tokens(
    path: str, *, length: int, dtype: str = "uint16", window: int = _WINDOW, bad: str = "stop", index: str | None = None
) -> TokenSource:
    """Files of tokens (.npy, or raw .bin): each sample is a pair of `length` tokens and the tokens that follow each.

    Args:
        path: A folder, a file, a glob, or a URL that fsspec knows.
        length: Tokens of a sample.
        dtype: Of the tokens in raw files. Default: `"uint16"`.
        window: Number of files that are shuffled together. Default: 16.
        bad: How to handle a damaged sample: `"stop"` ends the run; `"skip"` leaves the sample out and counts it in the
            records. Default: `"stop"`.
        index: The file of the index. Default: None, the one that `onecurve index PATH` writes into the folder.

    Example::

        oc.data.tokens("corpus/", length=2048)  # with loss=oc.loss.next_token
    """
    return TokenSource(path, length, dtype, window, bad, index)


def folder(path: str, load: Callable[[bytes], Any] = bytes, *, index: str | None = None) -> FolderSource:
    """Images, sounds or other files, one class per folder: each sample is a pair of a file's content and its class.

    Args:
        path: A folder with one folder per class, or a URL of one.
        load: A function that makes a sample's input from the bytes of its file. Default: they are left as they are.
        index: The file of the index. Default: None, the one that `onecurve index PATH` writes into the folder.

    Example::

        oc.data.folder("photos/", load=lambda data: decode_image(data))
    """
    return FolderSource(path, load, index)


def mix(weights: Mapping[str, float], sources: Mapping[str, Source]) -> MixedSource:
    """Mix sources by weight: at any position, the samples of each source differ from its share by less than one.

    A source that comes to its end begins anew, in another order, while the others go on.

    Args:
        weights: The share of each source by its name; they need not add up to 1.
        sources: The sources by their names.

    Example::

        oc.data.mix({"web": 0.7, "code": 0.3}, {"web": oc.data.jsonl("web/"), "code": oc.data.jsonl("code/")})
    """
    return MixedSource(weights, sources)


def prepared(source: Source, to: str) -> PreparedSource:
    """Store the results of a source's `.map` and `.filter` in files, once, and read the samples from these files.

    All cores prepare the samples at the first use; if this is interrupted, the next use continues. The order is that of
    the source. If a function or a file has changed since, an error names it: delete the folder then. Apply random
    augmentation afterwards: `oc.data.prepared(…).map(augment)`.

    Args:
        source: A source with its `.map` and `.filter`. Its samples can have numbers, text, bytes, arrays, tensors, and
            lists, tuples and dicts of those.
        to: The folder; hosts may share it.

    Example::

        oc.data.prepared(oc.data.jsonl("corpus/").map(tokenize), to="corpus-tokens/")
    """
    return PreparedSource(source, to)


def stream(open_lane: Callable[[int], Iterable[Any]], lanes: int = _LANES) -> StreamSource:
    """Samples that can only be iterated over: from a socket, a generator, a queue, a database.

    The sample at position p is the next one of lane p mod `lanes`, so a step has the same samples for any number of
    ranks. Each rank reads about lanes / ranks of the lanes. A lane that ends starts again from its beginning.

    Args:
        open_lane: Called with the number of a lane, returns an iterable of its samples, the same ones each time. If
            that has `state_dict` and `load_state_dict`, a run continues from a state; otherwise the lane is read again
            up to where it was.
        lanes: Number of lanes. It must divide `global_batch`, or be a multiple of it, and should not be below the
            number of ranks. Default: 64.

    Example::

        def open_lane(lane: int):
            with open(f"events-{lane}.txt") as file:
                for line in file:
                    yield parse(line)

        oc.data.stream(open_lane, lanes=16)
    """
    return StreamSource(open_lane, lanes)
