"""Packed documents: the same tokens as the documents concatenated, and the mask of those that are kept separate."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import onecurve as oc
from onecurve.data.source import Source
from onecurve.describe.errors import OnecurveError


def documents(folder: Path, files: list[list[list[int]]]) -> Source:
    folder.mkdir(parents=True)
    for number, file in enumerate(files):
        (folder / f"{number}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in file))
    oc.index(str(folder), processes=1)
    return oc.data.jsonl(str(folder)).map(lambda line: line["text"])


TOKENS = st.lists(st.lists(st.integers(0, 999), max_size=7), min_size=1, max_size=8)


@settings(max_examples=40, deadline=None)
@given(files=st.lists(TOKENS, min_size=1, max_size=2), length=st.integers(1, 6))
def test_sequences_are_cut_from_the_concatenated_documents(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[list[int]]], length: int
) -> None:
    source = documents(tmp_path_factory.mktemp("packed") / "data", files)
    expected = []
    for file in files:
        tokens = [token for text in file for token in text]
        expected += [
            (tokens[at : at + length], tokens[at + 1 : at + length + 1])
            for at in range(0, len(tokens) - length, length)
        ]
    if not expected:
        with pytest.raises(OnecurveError, match="no file has enough tokens"):
            source.packed(length)
        return
    packed = source.packed(length)
    assert [(inputs.tolist(), target.tolist()) for inputs, target in map(packed.__getitem__, range(len(packed)))] == (
        expected
    )


def test_separate_documents_do_not_see_each_other(tmp_path: Path) -> None:
    source = documents(tmp_path / "data", [[[1, 2, 3], [], [4, 5], [6, 7, 8, 9]]])
    inputs, target = source.packed(4, separate=True)[1]
    assert inputs["input_ids"].tolist() == [5, 6, 7, 8]
    assert inputs["position_ids"].tolist() == [1, 0, 1, 2]
    assert target.tolist() == [-100, 7, 8, 9]
    assert inputs["attention_mask"].tolist() == [
        [
            [True, False, False, False],
            [False, True, False, False],
            [False, True, True, False],
            [False, True, True, True],
        ]
    ]


def test_lengths_are_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = documents(tmp_path / "data", [[[1, 2, 3], [4, 5]]])
    assert len(source.packed(2)) == 2
    monkeypatch.setattr("onecurve.data.packing.work_on_pieces", None)  # it would fail
    assert len(source.packed(3)) == 1


def test_filtered_documents_have_no_tokens(tmp_path: Path) -> None:
    source = documents(tmp_path / "data", [[[1, 2], [9], [3, 4]]]).filter(lambda text: text != [9])
    assert source.packed(3)[0][0].tolist() == [1, 2, 3]


def test_a_function_that_returns_other_tokens_is_named(tmp_path: Path) -> None:
    source, lengths = documents(tmp_path / "data", [[[1, 2], [3, 4]]]), iter([2, 2, 2, 1])
    packed = source.map(lambda text: text[: next(lengths)]).packed(3)
    with pytest.raises(OnecurveError, match="has 1 tokens, and had 2 when they were counted"):
        packed[0]


@pytest.mark.parametrize("sample", ["text", {"a": 1}, [[1, 2]], [0.5]])
def test_samples_that_are_no_tokens_are_refused(tmp_path: Path, sample: object) -> None:
    source = documents(tmp_path / "data", [[[1]]]).map(lambda _: sample)
    with pytest.raises(OnecurveError, match="packed: each sample must be"):
        source.packed(2)


def test_a_mix_is_refused(tmp_path: Path) -> None:
    source = documents(tmp_path / "data", [[[1, 2], [3, 4]]])
    mixed = oc.data.mix({"a": 1.0}, {"a": source})
    with pytest.raises(OnecurveError, match="do that with each of its sources"):
        mixed.packed(2)
    with pytest.raises(OnecurveError, match="do that with each of its sources"):
        oc.data.prepared(mixed, to=str(tmp_path / "prepared"))


def test_packed_tokens_train_a_model(tmp_path: Path) -> None:
    packed = documents(tmp_path / "data", [[list(range(10))] * 3]).packed(4)
    assert torch.stack([packed[at][0] for at in range(2)]).shape == (2, 4)
