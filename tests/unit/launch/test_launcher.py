"""A rank's view of its launcher."""

from collections.abc import Iterator
from typing import Any

import pytest

from onecurve.describe.assignment import Assignment
from onecurve.describe.generation import Generation, StoreAddress
from onecurve.launch.launcher import Launcher
from onecurve.launch.message_socket import MessageSocket


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    keeper, rank = MessageSocket.pair()
    with rank:
        yield Launcher(MessageSocket(rank))
        keeper.close()


def assignment(generation: int) -> Assignment:
    store = StoreAddress("127.0.0.1", 1, "")
    entered = Generation(number=generation, size=2, hosts=1, store=store)
    return Assignment(generation=entered, rank=0, local_rank=0, local_size=2, interface="lo")


def test_what_a_broken_generation_has_held_goes_before_the_rank_says_that_it_has_left(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To close its process groups may hang, and only before it has left is the rank waited for."""
    seen: list[str] = []

    class Group:
        def __del__(self) -> None:
            seen.append("closed")

    def collective(group: Group) -> None:
        raise RuntimeError(f"[gloo/transport/tcp/pair.cc:1] Connection closed by peer, {type(group)}")

    def train() -> None:
        group = Group()
        try:
            collective(group)
        finally:
            raise RuntimeError("[gloo/transport/tcp/pair.cc:2] Connection closed by peer")

    def send(message: dict[str, Any], _: int | None = None) -> None:
        seen.append(next(iter(message)))

    monkeypatch.setattr(launcher, "_send", send)
    with launcher.taking_part(assignment(1), None, lambda: None):
        train()
    assert seen == ["closed", "failure"]


def test_only_the_generation_that_is_left_is_cut(launcher: Launcher) -> None:
    cuts: list[int] = []
    with launcher.taking_part(assignment(1), None, lambda: cuts.append(1)):
        launcher._take({"leave": 1})
    with launcher.taking_part(assignment(2), None, lambda: cuts.append(2)):
        launcher._cut_until_left()  # the watcher comes late
    assert cuts == []
