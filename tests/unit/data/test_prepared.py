"""Prepared samples: what the source gives, in its order, made once; a changed function is named."""

import os
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import onecurve as oc
from onecurve.data.function_identity import function_identity
from onecurve.data.source import Source
from onecurve.describe.errors import OnecurveError
from onecurve.formats.file_format import BadFileError
from onecurve.formats.sample_file import decode_sample, encode_sample
from sample_files import SIZES, write_jsonl

FACTOR = 3


def numbers(folder: Path) -> Source:
    if not folder.exists():
        write_jsonl(folder)
        oc.index(str(folder), processes=1)
    return oc.data.jsonl(str(folder)).map(lambda line: line["id"])


def test_samples_and_their_order_are_those_of_the_source(tmp_path: Path) -> None:
    source = numbers(tmp_path / "data").map(lambda number: (torch.full((2,), number), {"n": number}))
    prepared = oc.data.prepared(source, to=str(tmp_path / "prepared"))
    prepared.verify()
    assert len(prepared) == sum(SIZES)
    for sample in source.order(5).samples(0, 40):
        expected, found = source.read(sample.file, sample.offset), prepared.read(sample.file, sample.offset)
        assert torch.equal(found[0], expected[0])
        assert found[1] == expected[1]
    assert list(prepared.order(5).samples(0, 40)) == list(source.order(5).samples(0, 40))


def test_dropped_samples_stay_dropped(tmp_path: Path) -> None:
    source = numbers(tmp_path / "data").filter(lambda number: number % 2 == 0)
    prepared = oc.data.prepared(source, to=str(tmp_path / "prepared"))
    assert len(prepared) == sum(SIZES)
    assert prepared[4] == 4
    with pytest.raises(OnecurveError, match="is skipped"):
        prepared[5]


def test_it_is_made_once_and_continued(tmp_path: Path) -> None:
    calls = tmp_path / "calls"

    def slow(number: int) -> int:
        with calls.open("a") as file:
            file.write(f"{number}\n")
        if number == 15 and not (tmp_path / "mended").exists():
            raise ValueError("not yet")
        return number

    source = numbers(tmp_path / "data").map(slow)
    with pytest.raises(OnecurveError, match="sample 7 of piece 2 raised ValueError: not yet"):
        oc.data.prepared(source, to=str(tmp_path / "prepared"))
    (tmp_path / "mended").touch()
    for _ in range(2):
        prepared = oc.data.prepared(source, to=str(tmp_path / "prepared"))
        assert [prepared[at] for at in range(20)] == list(range(20))
    read = calls.read_text().split()
    assert read.count("3") == 1, "the first piece was complete"
    assert read.count("12") == 2


def test_a_changed_function_is_named(tmp_path: Path) -> None:
    source = numbers(tmp_path / "data")

    def twice(number: int) -> int:
        return 2 * number

    def thrice(number: int) -> int:
        return 3 * number

    oc.data.prepared(source.map(twice), to=str(tmp_path / "prepared"))
    with pytest.raises(OnecurveError, match=r"were made before test_\w+\.thrice \(test_prepared.py:\d+\) changed"):
        oc.data.prepared(source.map(thrice), to=str(tmp_path / "prepared"))


def test_changed_files_are_named(tmp_path: Path) -> None:
    oc.data.prepared(numbers(tmp_path / "data"), to=str(tmp_path / "prepared"))
    (tmp_path / "data" / "3.jsonl").write_text('{"id": 99}\n')
    oc.index(str(tmp_path / "data"), processes=1)
    with pytest.raises(OnecurveError, match=r"were made before the files of .*/data changed"):
        oc.data.prepared(numbers(tmp_path / "data"), to=str(tmp_path / "prepared"))


def test_a_folder_with_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").touch()
    with pytest.raises(OnecurveError, match="has other files in it"):
        oc.data.prepared(numbers(tmp_path / "data"), to=str(tmp_path / "photos"))


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(allow_nan=False),
        st.text(),
        st.binary(),
        st.sampled_from([np.arange(6).reshape(2, 3), np.float32(1.5), np.zeros((0, 2), np.uint8), np.array(7)]),
        st.sampled_from([torch.ones(2, dtype=torch.bfloat16), torch.tensor(3), torch.tensor([True, False])]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.tuples(inner, inner), st.dictionaries(st.text(), inner, max_size=3)
    ),
)


@given(VALUES)
def test_samples_are_stored_as_they_are(value: Any) -> None:
    assert_same(decode_sample(encode_sample(value)), value)


@given(VALUES, st.data())
def test_a_damaged_sample_is_found_or_another_sample(value: Any, data: st.DataObject) -> None:
    content = bytearray(encode_sample(value))
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        decode_sample(bytes(content))
    except BadFileError:
        return


def assert_same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    match expected:
        case torch.Tensor():
            assert found.dtype == expected.dtype
            assert torch.equal(found, expected)
        case np.ndarray() | np.generic():
            assert found.dtype == expected.dtype
            assert found.shape == expected.shape
            assert (found == expected).all()
        case list() | tuple():
            assert len(found) == len(expected)
            for pair in zip(found, expected, strict=True):
                assert_same(*pair)
        case dict():
            assert found.keys() == expected.keys()
            for key in expected:
                assert_same(found[key], expected[key])
        case _:
            assert found == expected


def test_values_that_cannot_be_stored_are_named() -> None:
    with pytest.raises(OnecurveError, match="a value of type object cannot be stored"):
        encode_sample([object()])


HELPERS = """
def clean(text): return text.strip()
"""

MAIN = """
import script
from onecurve.data.function_identity import function_identity
print(function_identity(script.function).hash)
"""


def in_new_process(folder: Path) -> str:
    """The hash of `function` in the script of this folder."""
    (folder / "main.py").write_text(MAIN)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path]), "PYTHONHASHSEED": "random"}
    command = [sys.executable, str(folder / "main.py")]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return ended.stdout.strip()


def module(folder: Path, text: str, helpers: str = HELPERS) -> str:
    """The hash of `function` in a script with this text, as if it had been imported."""
    folder.mkdir(exist_ok=True)
    for name, content in (("helpers", helpers), ("script", text)):
        (folder / f"{name}.py").write_text(content)
        made = types.ModuleType(name)
        made.__file__ = str(folder / f"{name}.py")
        sys.modules[name] = made
        exec(compile(content, made.__file__, "exec"), vars(made))
    try:
        return function_identity(vars(made)["function"]).hash
    finally:
        del sys.modules["helpers"], sys.modules["script"]


SCRIPT = """
import json
import re
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
import torch
import helpers
PATTERN = re.compile("a+")
NAMED = partial(str, Path("first"))
@dataclass(slots=True)
class Settings:
    size: int = 7
SETTINGS = Settings(5)
class Table:
    entries = {"x": 10}
@torch.no_grad()
def decorated(x): return x * 11
@lru_cache
def remembered(x): return x * 12
class Odd:
    def __reduce_ex__(self, _): raise TypeError
WORDS = {"a", "b", "c", "d"}
SIZE = 3
class Tokenizer:
    kind = 1
    def encode(self, text): return [ord(letter) for letter in text]
TOKENIZER = Tokenizer()
def helper(x): return x + SIZE
def function(x, scale=2):
    inner = lambda y: helper(y) * scale
    used = PATTERN, NAMED, SETTINGS, Table.entries, decorated(1), remembered(1), helpers.clean("x")
    return inner(len(TOKENIZER.encode(json.dumps(x)))), x in WORDS
"""


def test_the_hash_of_a_function_changes_with_all_that_it_uses(tmp_path: Path) -> None:
    first = module(tmp_path / "a", SCRIPT)
    assert module(tmp_path / "a", SCRIPT) == first
    assert in_new_process(tmp_path / "a") == in_new_process(tmp_path / "a") == first
    assert module(tmp_path / "b", "# moved\n\n" + SCRIPT) == first, "lines and folders do not count"
    for old, new in [
        ("SIZE = 3", "SIZE = 4"),
        ("x + SIZE", "x - SIZE"),
        ("scale=2", "scale=3"),
        ("ord(letter)", "ord(letter) + 1"),
        ("kind = 1", "kind = 2"),
        ('"d"}', '"e"}'),
        ("* scale", "+ scale"),
        ('"a+"', '"b+"'),
        ('"first"', '"second"'),
        ("Settings(5)", "Settings(6)"),
        ('"x": 10', '"x": 20'),
        ("x * 11", "x * 21"),
        ("x * 12", "x * 22"),
    ]:
        assert module(tmp_path / "a", SCRIPT.replace(old, new)) != first, new

    assert module(tmp_path / "a", SCRIPT, HELPERS.replace("strip", "lower")) != first


def test_objects_that_cannot_be_looked_into_are_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lock = threading.Lock()

    def function(number: int) -> int:
        with lock:
            return number

    assert function_identity(function).unseen == ("_thread.lock",)
    oc.data.prepared(numbers(tmp_path / "data").map(function), to=str(tmp_path / "prepared"))
    assert "if _thread.lock changes, that is not noticed" in capfd.readouterr().err


def test_values_in_a_closure_count() -> None:
    def adding(number: object) -> Any:
        return lambda x: x + number

    assert function_identity(adding(1)).hash == function_identity(adding(1)).hash
    assert function_identity(adding(1)).hash != function_identity(adding(2)).hash
    arrays = [function_identity(adding(np.full(3, value))).hash for value in (1, 1, 2)]
    texts = [function_identity(adding(np.array([f"{value} samples"], object))).hash for value in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    assert arrays[0] == arrays[1] != arrays[2]
