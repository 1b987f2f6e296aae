"""Parquet files, read by pyarrow. A piece is a row group: its rows are read and decoded together."""

from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import IO, Any

from onecurve.describe.errors import OnecurveError
from onecurve.formats.file_format import BadFileError, FilePart, SampleReader
from onecurve.formats.index_file import Numbers
from onecurve.formats.storage import HashedStream

_MAGIC = b"PAR1"
_THRIFT_BYTES, _THRIFT_ELEMENTS = 1 << 26, 1 << 20
"""The most that a file may say about itself."""
_MAX_GROUP_BYTES = 1 << 32


class ParquetFormat:
    """Samples are dicts of column → value."""

    name = "Parquet"

    def __init__(self, columns: Sequence[str] | None = None) -> None:
        """`columns`: those that are read; None for all."""
        self._columns = columns

    def recognizes(self, path: str, head: bytes) -> bool:  # noqa: ARG002
        return head.startswith(_MAGIC)

    def scan(self, stream: HashedStream, size: int) -> list[FilePart]:  # noqa: ARG002
        stream.finish()
        metadata = _opened(stream.file).metadata
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        return [FilePart(group.num_rows, [number, group.total_byte_size]) for number, group in enumerate(groups)]

    def open(self, file: IO[bytes], samples: int, details: Numbers) -> SampleReader:
        opened, (group, size) = _opened(file), map(int, details)
        if group >= opened.metadata.num_row_groups or opened.metadata.row_group(group).num_rows != samples:
            raise BadFileError("its index does not fit the file")
        if size > _MAX_GROUP_BYTES:
            raise BadFileError(
                f"row group {group} has {size:,} bytes, more than {_MAX_GROUP_BYTES:,}; write smaller ones"
            )
        known = opened.schema_arrow.names
        for column in self._columns or ():
            if column not in known:
                raise OnecurveError(f"it has no column {column!r}; it has {', '.join(known)}")
        return _RowReader(opened, group, self._columns)


class _RowReader:
    def __init__(self, opened: Any, group: int, columns: Sequence[str] | None) -> None:
        try:
            table = opened.read_row_group(
                group, columns=list(columns) if columns is not None else None, use_threads=False
            )
        except (OSError, ValueError, MemoryError) as error:  # pyarrow's errors are of these classes
            raise BadFileError(f"row group {group} is damaged ({error})") from None
        self._columns = {name: _values(table.column(name)) for name in table.column_names}

    def read(self, offset: int) -> Any:
        return {name: values[offset] for name, values in self._columns.items()}


def _values(column: Any) -> Any:
    """A column as something that is indexed fast: Python's objects, once for all rows."""
    return column.to_pylist()


def _opened(file: IO[bytes]) -> Any:
    file.seek(0)
    try:
        return _parquet().ParquetFile(
            file, thrift_string_size_limit=_THRIFT_BYTES, thrift_container_size_limit=_THRIFT_ELEMENTS
        )
    except (OSError, ValueError, MemoryError) as error:
        raise BadFileError(f"it is damaged ({error})") from None


def _parquet() -> ModuleType:
    try:
        return import_module("pyarrow.parquet")
    except ImportError:
        raise OnecurveError("Parquet files need pyarrow; install it with `pip install 'onecurve[data]'`") from None
