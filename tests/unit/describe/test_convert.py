import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from onecurve.describe.convert import (
    from_document,
    from_json,
    from_plain,
    nearest,
    read_json,
    read_toml,
    to_document,
    to_json,
    to_toml,
)
from onecurve.describe.errors import OnecurveError

LARGEST_FILE = 1 << 20


@dataclass(frozen=True)
class Inner:
    size: int = 1


@dataclass(frozen=True)
class Outer:
    file_version: ClassVar[int] = 3

    rate: float = 0.5
    note: str | None = None
    inner: Inner = Inner()
    all_inner: tuple[Inner, ...] = ()


def refusal(plain: object, **options: bool) -> str:
    with pytest.raises(OnecurveError) as refused:
        from_plain(Outer, plain, "file", **options)
    return str(refused.value)


def test_the_nearest_word_or_all_known_ones() -> None:
    assert nearest("shrad", ["replicate", "shard"]) == "did you mean 'shard'?"
    assert nearest("xyz", ["replicate", "shard"]) == "known: replicate, shard"
    assert nearest("xyz", []) == "none is known"


def test_values_must_have_their_type_unless_they_come_from_the_command_line() -> None:
    assert from_plain(Outer, {"rate": 2}, "file") == Outer(rate=2.0)
    assert refusal({"rate": "2"}).startswith("file: rate: expected float")
    assert refusal({"rate": [2]}).startswith("file: rate: expected float")
    assert from_plain(Outer, {"rate": "2"}, "file", lax=True) == Outer(rate=2.0)


def test_an_unknown_key_is_found_at_any_depth() -> None:
    assert "unknown key 'rat'" in refusal({"rat": 1})
    assert "[inner]: unknown key 'sise'" in refusal({"inner": {"sise": 1}})
    assert "unknown key 'sise'" in refusal({"all_inner": [{"size": 1}, {"sise": 1}]})
    assert "inner.size: expected int" in refusal({"inner": {"size": "large"}})


def test_json_has_no_infinite_numbers() -> None:
    assert to_json(Outer(rate=math.nan)) == to_json(Outer(rate=math.inf))
    assert '"rate":null' in to_json(Outer(rate=math.nan))
    assert from_json(Outer, to_json(Outer(rate=0.25)).encode(), "line") == Outer(rate=0.25)
    with pytest.raises(OnecurveError, match="line: not valid JSON"):
        from_json(Outer, b"{", "line")


def test_toml_leaves_out_what_is_none() -> None:
    assert "note" not in to_toml(Outer())
    assert 'note = "slow"' in to_toml(Outer(note="slow"))


@pytest.mark.parametrize(("version", "readable"), [(1, True), (3, True), (4, False), (0, False), (True, False)])
def test_versions_of_a_file(version: int, readable: bool) -> None:
    document = {**to_document(Outer(rate=2.0)), "version": version}
    if readable:
        assert from_document(Outer, document, "file") == Outer(rate=2.0)
    else:
        with pytest.raises(OnecurveError, match="version"):
            from_document(Outer, document, "file")


def test_a_file_without_a_version_is_of_the_current_one(tmp_path: Path) -> None:
    assert to_document(Outer())["version"] == 3
    (tmp_path / "outer.json").write_text('{"rate": 2.0}')
    assert read_json(Outer, tmp_path / "outer.json") == Outer(rate=2.0)


def test_only_a_regular_file_of_limited_size_is_read(tmp_path: Path) -> None:
    path = tmp_path / "outer.toml"
    with pytest.raises(OnecurveError, match="no such file"):
        read_toml(Outer, path)
    with pytest.raises(OnecurveError, match="is a folder"):
        read_toml(Outer, tmp_path)
    path.write_text("#" * (LARGEST_FILE - 1) + "\n")
    assert read_toml(Outer, path) == Outer()
    path.write_text("#" * LARGEST_FILE + "\n")
    with pytest.raises(OnecurveError, match="not a regular file"):
        read_toml(Outer, path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OnecurveError, match="not a regular file"):
        read_toml(Outer, tmp_path / "pipe")


@dataclass(frozen=True)
class Measured:
    file_version: ClassVar[int] = 1

    loss: float
    terms: dict[str, float]
    last: Outer | None = None
    count: int | None = None


def test_null_in_a_json_file_is_nan_where_a_number_belongs(tmp_path: Path) -> None:
    path = tmp_path / "measured.json"
    path.write_text(
        '{"loss": null, "terms": {"forward": null, "backward": 2.0}, "last": {"rate": null}, "count": null}'
    )
    read = read_json(Measured, path)
    assert math.isnan(read.loss)
    assert math.isnan(read.terms["forward"])
    assert read.terms["backward"] == 2.0
    assert read.last is not None
    assert math.isnan(read.last.rate)
    assert read.count is None
    path.write_text('{"loss": 1.0, "terms": {}, "last": null}')
    assert read_json(Measured, path) == Measured(1.0, {})


@pytest.mark.parametrize("text", ['{"loss": 1.0, "terms": {}, "lost": {"a": 1}}', '{"loss": {"a": 1}, "terms": {}}'])
def test_a_table_in_a_json_file_where_none_belongs_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "measured.json").write_text(text)
    with pytest.raises(OnecurveError, match=r"measured\.json: "):
        read_json(Measured, tmp_path / "measured.json")
