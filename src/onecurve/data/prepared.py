"""Samples that a source has prepared once, in files: later epochs and runs read those."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from onecurve.data.file_source import FileSource
from onecurve.data.function_identity import Identity
from onecurve.data.piece_work import all_samples, locked, say, work_on_pieces
from onecurve.data.pieces import Pieces
from onecurve.data.source import Source
from onecurve.describe.errors import OnecurveError
from onecurve.device.files import replace_file
from onecurve.formats.indexing import DataLocation, build_index, index_path
from onecurve.formats.sample_file import SampleFormat, file_parts

_MADE_OF = "_made_of.json"
_LOCK = "_lock"


class PreparedSource(FileSource):
    """The samples of another source, as they are after its functions. It has the same pieces, so the same order."""

    def __init__(self, source: Source, to: str) -> None:
        if "://" in to:
            raise OnecurveError(
                f"prepared: {to} is not a folder; samples are prepared in one, which all hosts may share"
            )
        source.index_path()  # a mix has none, and is refused
        self._identity = source.identity()
        _prepare(source, self._identity, Path(to))
        super().__init__(to, SampleFormat(), source.window, "stop", None)

    def identity(self) -> list[Identity]:
        return self._identity


def _prepare(source: Source, identity: Sequence[Identity], folder: Path) -> None:
    """Write the pieces that are not there yet, and then their index."""
    made_of, location = folder / _MADE_OF, DataLocation(str(folder))
    if index_path(location) is not None:
        _refuse_other(made_of, identity)
        return
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / _LOCK, "the prepared samples"):
        if index_path(location) is not None:  # whoever had the lock has written it
            _refuse_other(made_of, identity)
            return
        if made_of.exists():
            _refuse_other(made_of, identity)
        elif any(path for path in folder.iterdir() if not path.name.startswith(("_", "."))):
            raise OnecurveError(f"prepared: {folder} has other files in it; choose a new folder")
        else:
            replace_file(made_of, [msgspec.json.encode(list(identity))])
            if unseen := sorted({each for one in identity for each in one.unseen}):
                say(f"prepared: if {', '.join(unseen)} changes, that is not noticed; delete {folder} then")
        missing = [piece for piece in range(len(source.piece_sizes)) if not _piece_path(folder, piece).exists()]
        for _ in work_on_pieces(source, _Writer(folder), missing, f"preparing samples in {folder}"):
            pass
        build_index(location)


class _Writer:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, source: Pieces, piece: int) -> None:
        try:
            replace_file(_piece_path(self._folder, piece), file_parts(all_samples(source, piece)))
        except OSError as error:
            raise OnecurveError(f"prepared: {self._folder} cannot be written ({error.strerror or error})") from None


def _piece_path(folder: Path, piece: int) -> Path:
    return folder / f"piece-{piece:08d}.samples"


def _refuse_other(made_of: Path, identity: Sequence[Identity]) -> None:
    """Refuse a folder that was made of other files, or by other functions."""
    try:
        known = msgspec.json.decode(made_of.read_bytes(), type=list[Identity])
    except (OSError, msgspec.DecodeError) as error:
        raise OnecurveError(f"prepared: {made_of} cannot be read ({error}); delete {made_of.parent}") from None
    changed = [each.name for each in identity if each.hash not in {one.hash for one in known}]
    if [each.hash for each in known] != [each.hash for each in identity]:
        what = " and ".join(changed) if changed else "the order of the functions"
        raise OnecurveError(
            f"prepared: the samples in {made_of.parent} were made before {what} changed (or by another version of "
            "Python); delete that folder, or choose a new one"
        )
