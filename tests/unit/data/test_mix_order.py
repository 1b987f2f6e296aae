"""A mix: every prefix has the share of each source, to less than one sample."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import onecurve as oc
from onecurve.data.mix_order import MixOrder, Mixture
from onecurve.data.order import Order
from onecurve.describe.errors import OnecurveError
from sample_files import SIZES, WRITERS

weights = st.lists(st.integers(1, 30), min_size=1, max_size=6)


@given(weights, st.integers(0, 10**12))
def test_every_prefix_has_the_share_of_each_source(given_weights: list[int], far: int) -> None:
    mixture, total = Mixture([float(weight) for weight in given_weights]), sum(given_weights)
    for position in (*range(2 * total + 2), far):
        taken = [mixture.taken(source, position) for source in range(len(given_weights))]
        assert sum(taken) == position
        for weight, count in zip(given_weights, taken, strict=True):
            assert abs(count - position * weight / total) < 1 + 1e-9


@given(weights, st.integers(0, 50), st.integers(1, 40), st.integers(0, 40))
def test_any_part_of_the_order_is_the_same(given_weights: list[int], begin: int, length: int, cut: int) -> None:
    orders = [Order([3, 5 + number], seed=number) for number in range(len(given_weights))]
    order = MixOrder(Mixture([float(weight) for weight in given_weights]), orders, [2] * len(orders))
    whole = list(order.samples(begin, begin + length))
    middle = begin + min(cut, length)
    parts = [*order.samples(begin, middle)] if middle > begin else []
    parts += [*order.samples(middle, begin + length)] if middle < begin + length else []
    assert parts == whole


def test_a_mix_of_files(tmp_path: Path) -> None:
    for kind in ("jsonl", "tar"):
        WRITERS[kind](tmp_path / kind)
        oc.index(str(tmp_path / kind), processes=1)
    lines = oc.data.jsonl(str(tmp_path / "jsonl")).map(lambda line: ("line", line["id"]))
    members = oc.data.tar(str(tmp_path / "tar")).map(lambda sample: ("member", int(sample["id"])))
    mixed = oc.data.mix({"lines": 3, "members": 1}, {"lines": lines, "members": members})
    assert len(mixed) == 26  # after which there are no lines left
    samples = [mixed[index] for index in range(len(mixed))]
    assert len(set(samples)) == len(samples)
    order = mixed.order(seed=0)
    drawn = [mixed.read(sample.file, sample.offset) for sample in order.samples(0, 80)]
    assert sum(kind == "line" for kind, _ in drawn) == 60
    assert sorted(number for kind, number in drawn if kind == "member") == list(range(sum(SIZES)))


def test_weights_and_sources_must_have_the_same_names() -> None:
    with pytest.raises(OnecurveError, match="each source needs a weight; there are weights for a, and sources b"):
        oc.data.mix({"a": 1}, {"b": oc.data.source.Source})
    with pytest.raises(OnecurveError, match="weights must be above 0"):
        Mixture([1.0, 0.0])


@given(st.lists(st.integers(1, 9), min_size=1, max_size=3), st.integers(0, 80))
def test_the_next_use_of_a_file_is_not_after_its_next_sample(weights: list[int], position: int) -> None:
    sizes = [[3, 4, 2], [5, 1], [2, 2, 2, 2]][: len(weights)]
    orders = [Order(files, 1, 2) for files in sizes]
    mixed = MixOrder(Mixture(weights), orders, [len(files) for files in sizes])
    uses = mixed.next_uses(position)
    samples = list(mixed.samples(position, position + 400))
    for file in range(sum(map(len, sizes))):
        read = [position + at for at, sample in enumerate(samples) if sample.file == file]
        assert not read or position <= uses[file] <= read[0]
