"""Conversion between dataclasses and plain data (TOML, JSON, command-line words).

Reading is strict: an unknown key is an error that names the nearest known key. A dataclass that is the content of a
file has a class variable `file_version`; the file then begins with `version`, and a newer version is refused.
"""

import dataclasses
import difflib
import math
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
import tomli_w

from onecurve.describe.errors import OnecurveError

T = TypeVar("T")

_MAX_TOML_BYTES = 1 << 20
_VERSION = "version"
_ENCODER = msgspec.json.Encoder()


def nearest(word: str, known: Iterable[str]) -> str:
    """Return `did you mean 'shard'?`, or the list of known words if none is similar."""
    known = list(known)
    similar = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    if similar:
        return f"did you mean {similar[0]!r}?"
    return f"known: {', '.join(known)}" if known else "none is known"


def from_plain(kind: type[T], plain: object, where: str, *, lax: bool = False) -> T:
    """Build `kind` from dicts, lists and scalars. `where` names the source in error messages.

    With `lax`, numbers and booleans are also read from text, which command-line arguments need.
    """
    _refuse_unknown_keys(kind, plain, where)
    try:
        return msgspec.convert(plain, kind, strict=not lax)
    except OnecurveError as error:  # raised by a dataclass's own checks, which do not know the source
        if str(error).startswith(where):
            raise
        raise type(error)(f"{where}: {error}") from None
    except msgspec.ValidationError as error:
        raise OnecurveError(f"{where}: {_readable(str(error))}") from None
    except (ValueError, TypeError) as error:
        raise OnecurveError(f"{where}: {error}") from None


def to_plain(noun: object) -> Any:
    """Convert dataclasses, tuples and mappings to dicts, lists and scalars."""
    return msgspec.to_builtins(noun)


def to_json(noun: object) -> str:
    """Return one line of JSON. NaN and infinity become null, because JSON cannot express them."""
    return _ENCODER.encode(noun).decode()


def json_line(noun: object) -> bytes:
    """Return the same with a line break, for files of lines."""
    return _ENCODER.encode(noun) + b"\n"


def from_json(kind: type[T], raw: bytes, where: str) -> T:
    """Read what `to_json` wrote, as strictly as `from_plain`."""
    return from_plain(kind, _decode_json(raw, where), where)


def to_document(noun: object) -> dict[str, Any]:
    """Return the plain content of a file: its version, then the fields of the dataclass."""
    return {_VERSION: _file_version(type(noun)), **to_plain(noun)}


def from_document(kind: type[T], plain: object, where: str) -> T:
    """Read the plain content of a file. A missing version, as in a file written by hand, means the current one."""
    if isinstance(plain, dict) and _VERSION in plain:
        supported = _file_version(kind)
        version = plain[_VERSION]
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise OnecurveError(f"{where}: version = {version!r}; it must be a whole number of at least 1")
        if version > supported:
            raise OnecurveError(
                f"{where}: the file has version {version}, but this onecurve reads versions up to {supported}; upgrade "
                "onecurve, or write the file again with this one"
            )
        plain = {key: value for key, value in plain.items() if key != _VERSION}
    return from_plain(kind, plain, where)


def read_json(kind: type[T], path: Path) -> T:
    """Read a JSON file that `to_document` made."""
    plain = _decode_json(path.read_bytes(), str(path))
    return from_document(kind, null_to_nan(kind, plain), str(path))


def null_to_nan(kind: Any, plain: Any) -> Any:
    """Return plain data with NaN for every null where `kind` has a float: `to_json` writes NaN and infinity as null."""
    if dataclasses.is_dataclass(kind) and isinstance(plain, dict):
        hints = get_type_hints(kind)
        return {key: null_to_nan(hints.get(key), value) for key, value in plain.items()}
    if get_origin(kind) is dict and isinstance(plain, dict):
        return {key: null_to_nan(get_args(kind)[1], value) for key, value in plain.items()}
    if plain is not None:  # an optional dataclass
        inner = next((option for option in get_args(kind) if dataclasses.is_dataclass(option)), None)
        return plain if inner is None else null_to_nan(inner, plain)
    return math.nan if kind is float else plain


def read_toml(kind: type[T], path: Path) -> T:
    """Read a TOML file that may have been written by hand or by somebody else."""
    try:
        plain = tomllib.loads(_read_small_file(path))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise OnecurveError(f"{path}: not valid TOML: {error}") from None
    return from_document(kind, plain, str(path))


def write_toml(noun: object, path: Path) -> None:
    path.write_text(to_toml(noun), encoding="utf-8")


def to_toml(noun: object) -> str:
    """Return the content of a TOML file. Fields that are None are left out, because TOML cannot express None."""
    return tomli_w.dumps(_without_none(noun if isinstance(noun, dict) else to_document(noun)))


def _file_version(kind: Any) -> int:
    version: int = kind.file_version
    return version


def _decode_json(raw: bytes, where: str) -> object:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise OnecurveError(f"{where}: not valid JSON: {error}") from None


def _read_small_file(path: Path) -> str:
    """Read a file that somebody else may have written: refuse pipes, which never end, and oversized files."""
    if path.is_dir():
        raise OnecurveError(f"{path}: is a folder; a TOML file is needed")
    if not path.exists():
        raise OnecurveError(f"{path}: no such file")
    if not path.is_file() or path.stat().st_size > _MAX_TOML_BYTES:
        raise OnecurveError(f"{path}: not a regular file of at most {_MAX_TOML_BYTES:,} bytes")
    return path.read_text(encoding="utf-8")


def _without_none(plain: Any) -> Any:
    if isinstance(plain, dict):
        return {name: _without_none(value) for name, value in plain.items() if value is not None}
    return [_without_none(item) for item in plain] if isinstance(plain, list | tuple) else plain


def _refuse_unknown_keys(kind: Any, plain: object, where: str) -> None:
    if get_origin(kind) is tuple and isinstance(plain, list):
        for item in plain:
            _refuse_unknown_keys(get_args(kind)[0], item, where)
    if not (dataclasses.is_dataclass(kind) and isinstance(plain, dict)):
        return
    hints = get_type_hints(kind)
    known = [field.name for field in dataclasses.fields(kind) if field.init]
    for key, value in plain.items():
        if key not in known:
            raise OnecurveError(f"{where}: unknown key {key!r} ({nearest(str(key), known)})")
        choices = get_args(hints[key]) if get_origin(hints[key]) is Literal else ()
        if choices and value not in choices:
            raise OnecurveError(f"{where}: {key} = {value!r} (known: {', '.join(map(str, choices))})")
        _refuse_unknown_keys(hints[key], value, f"{where}: [{key}]")


def _readable(message: str) -> str:
    """`Expected `int`, got `str` - at `$.mesh.shard`` → `mesh.shard: expected int, got str`."""
    what, _, location = message.partition(" - at ")
    what = what.replace("`", "")
    what = what[:1].lower() + what[1:]
    location = location.strip("`").removeprefix("$").removeprefix(".")
    return f"{location}: {what}" if location else what
