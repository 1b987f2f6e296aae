"""The tree in which hosts ask each other for a file."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onecurve.cache.peers import Peers


def above(hosts: int, key: str) -> list[list[int]]:
    addresses = [("10.0.0.1", 1)] * hosts
    return [Peers(addresses, own, b"").above(key) for own in range(hosts)]


@given(st.integers(1, 40), st.integers(0, 2**128 - 1))
def test_one_host_reads_the_store_and_each_sends_a_file_to_two_others(hosts: int, number: int) -> None:
    asked = above(hosts, f"{number:032x}")
    assert [len(each) for each in asked].count(0) == 1
    root = next(host for host, each in enumerate(asked) if not each)
    for host, each in enumerate(asked):
        if each:
            assert each[-1] == root
            assert each[1:] == asked[each[0]]
            assert host not in each
    assert max(Counter(each[0] for each in asked if each).values(), default=0) <= 2


def test_ten_thousand_hosts_are_fourteen_apart() -> None:
    asked = above(10_000, "0123456789abcdef" * 2)
    assert max(map(len, asked)) == 13


@pytest.mark.parametrize("hosts", [3, 8])
def test_files_have_different_first_hosts(hosts: int) -> None:
    roots = Counter(next(i for i, each in enumerate(above(hosts, f"{17**n % 2**128:032x}")) if not each)
                    for n in range(8, 408))  # fmt: skip
    assert min(roots.values()) > 400 / hosts / 2
