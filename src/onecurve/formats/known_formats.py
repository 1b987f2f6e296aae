"""All formats of data files, and which of them a file has."""

from collections.abc import Mapping

from onecurve.formats.file_format import FileFormat
from onecurve.formats.json_lines import JsonLinesFormat
from onecurve.formats.parquet_file import ParquetFormat
from onecurve.formats.sample_file import SampleFormat
from onecurve.formats.sample_folder import NAME as FOLDER
from onecurve.formats.sample_folder import is_media
from onecurve.formats.tar_file import TarFormat
from onecurve.formats.tf_record import TfRecordFormat
from onecurve.formats.token_file import TokenFormat

HEAD_BYTES = 1 << 12

# Those with an unmistakable begin come first.
FORMATS: Mapping[str, FileFormat] = {
    each.name: each
    for each in (ParquetFormat(), TarFormat(), TfRecordFormat(), JsonLinesFormat(), TokenFormat(), SampleFormat())
}
NAMES = (*FORMATS, FOLDER)


def recognized(path: str, head: bytes) -> str | None:
    """Return the name of the format of a file, by its content and, where that is not enough, by its name; None if it is
    not known."""
    if is_media(head):
        return FOLDER
    return next((name for name, each in FORMATS.items() if each.recognizes(path, head)), None)
