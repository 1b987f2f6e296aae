"""onecurve index: find the samples of data in files."""

from collections.abc import Callable
from pathlib import Path

from onecurve.describe.errors import OnecurveError
from onecurve.formats.indexing import DataLocation, Indexed, build_index


def index(
    path: str,
    *,
    out: str | Path | None = None,
    processes: int | None = None,
    progress: Callable[[int, int], None] = lambda _, __: None,
) -> Indexed:
    """Write the index of data in files: how many samples each file has, where they are, and its hash.

    Files in an earlier index are read again only if their size or modification time has changed. If indexing is
    interrupted, the next call continues.

    Args:
        path: A folder, a file, a glob such as `"data/*.jsonl"`, or a URL that fsspec knows. Formats: Parquet, JSON
            lines (also .gz and .zst), tar, TFRecord, tokens (.npy and .bin), folders of images or sounds.
        out: The file of the index. Default: None, `_onecurve.index` in the folder.
        processes: Number of files that are read at the same time. Default: None, one per core.
        progress: A function that is called with the bytes read so far and the total bytes. Default: no function.

    Returns:
        The path of the index, the format, and the numbers of files, samples and bytes.

    Example::

        from pathlib import Path

        Path("reviews").mkdir()
        Path("reviews/first.jsonl").write_text('{"text": "good", "stars": 5}\\n')
        print(oc.index("reviews/").samples)  # 1
    """
    if processes is not None and processes < 1:
        raise OnecurveError(f"index: processes must be at least 1, got {processes}")
    target = Path(out) if out is not None else None
    return build_index(DataLocation.at(path), out=target, processes=processes, progress=progress)
