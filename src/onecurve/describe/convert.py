"""Plain data in, nouns out, and back. Strict: an unknown key is an error that names the nearest known one."""

import dataclasses
import difflib
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
import tomli_w

from onecurve.describe.errors import OnecurveError

T = TypeVar("T")

_LARGEST_TOML = 1 << 20


def nearest(word: str, known: Iterable[str]) -> str:
    """`did you mean 'shard'?`, or the list of what is known when nothing is near."""
    known = list(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known: {', '.join(known)}" if known else "none is known"


def from_plain(kind: type[T], plain: object, where: str, *, lax: bool = False) -> T:
    """Build `kind` from dicts, lists and scalars; `where` names the source in errors.

    `lax` also reads numbers and booleans from text, as command-line arguments need.
    """
    _refuse_unknown(kind, plain, where)
    try:
        return msgspec.convert(plain, kind, strict=not lax)
    except msgspec.ValidationError as error:
        raise OnecurveError(f"{where}: {_readable(str(error))}") from None
    except (ValueError, TypeError) as error:
        raise OnecurveError(f"{where}: {error}") from None


def to_plain(noun: object) -> Any:
    return msgspec.to_builtins(noun)


def to_json(noun: object) -> str:
    """One line of JSON. A number that is not finite becomes null, since JSON has no word for it."""
    return msgspec.json.encode(noun).decode()


def from_json(kind: type[T], raw: bytes, where: str) -> T:
    """The inverse of `to_json`, as strict as `from_plain`."""
    try:
        plain = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise OnecurveError(f"{where}: not valid JSON: {error}") from None
    return from_plain(kind, plain, where)


def read_toml(kind: type[T], path: Path) -> T:
    try:
        plain = tomllib.loads(_read_small(path))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise OnecurveError(f"{path}: not valid TOML: {error}") from None
    return from_plain(kind, plain, str(path))


def _read_small(path: Path) -> str:
    """Of a file that somebody else may have written: no pipe that never ends, no more than such files have."""
    if path.is_dir():
        raise OnecurveError(f"{path}: is a folder, a TOML file is needed")
    if not path.exists():
        raise OnecurveError(f"{path}: no such file")
    if not path.is_file() or path.stat().st_size > _LARGEST_TOML:
        raise OnecurveError(f"{path}: not a file of at most {_LARGEST_TOML} bytes")
    return path.read_text(encoding="utf-8")


def write_toml(noun: object, path: Path) -> None:
    path.write_text(to_toml(noun), encoding="utf-8")


def to_toml(noun: object) -> str:
    """TOML has no word for None: what is so is left out."""
    return tomli_w.dumps(_without_none(to_plain(noun)))


def _without_none(plain: Any) -> Any:
    if isinstance(plain, dict):
        return {name: _without_none(value) for name, value in plain.items() if value is not None}
    return [_without_none(each) for each in plain] if isinstance(plain, list | tuple) else plain


def _refuse_unknown(kind: Any, plain: object, where: str) -> None:
    if get_origin(kind) is tuple and isinstance(plain, list):
        for each in plain:
            _refuse_unknown(get_args(kind)[0], each, where)
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
        _refuse_unknown(hints[key], value, f"{where}: [{key}]")


def _readable(message: str) -> str:
    """`Expected `int`, got `str` - at `$.mesh.shard`` → `mesh.shard: expected int, got str`."""
    what, _, place = message.partition(" - at ")
    what = what.replace("`", "")
    what = what[:1].lower() + what[1:]
    place = place.strip("`").removeprefix("$").removeprefix(".")
    return f"{place}: {what}" if place else what
