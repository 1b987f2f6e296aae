"""A rank's view of its launcher."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from onecurve.describe.assignment import Assignment
from onecurve.describe.errors import CorruptedReplicaError
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

    def train() -> None:
        group = Group()

        def collective() -> None:  # the traceback holds the function, which holds the group
            raise RuntimeError(f"[gloo/transport/tcp/pair.cc:1] Connection closed by peer, {type(group)}")

        try:
            collective()
        finally:
            raise RuntimeError("[gloo/transport/tcp/pair.cc:2] Connection closed by peer")

    def send(message: dict[str, Any], _: int | None = None) -> None:
        seen.append(next(iter(message)))

    monkeypatch.setattr(launcher, "_send", send)
    with launcher.taking_part(assignment(1), None, lambda: None):
        train()
    launcher._take(None)
    assert not list(launcher.assignments())
    assert seen == ["closed", "failure"]


def test_only_the_generation_that_is_left_is_cut(launcher: Launcher) -> None:
    """The rank leaves a generation, and enters the next one, while its connections are being cut."""
    cuts: list[int] = []
    begun, may_end = threading.Event(), threading.Event()

    def cut() -> None:
        cuts.append(1)
        begun.set()
        may_end.wait(10)

    with launcher.taking_part(assignment(1), None, cut):
        launcher._take({"leave": 1})
        watcher = threading.Thread(target=launcher._cut_until_left, daemon=True)
        watcher.start()
        assert begun.wait(10)
    entered: list[bool] = []

    def enter() -> None:
        with launcher.taking_part(assignment(2), None, lambda: cuts.append(2)):
            entered.append(True)
            watcher.join(1.0)  # it goes on in generation 2, if it does not look again

    rank = threading.Thread(target=enter)
    rank.start()
    rank.join(0.2)
    assert not entered, "it was not waited until the connections are cut"
    may_end.set()
    rank.join(10)
    assert not watcher.is_alive()
    assert entered
    assert cuts == [1]


def test_a_corrupted_rank_says_so_also_if_it_was_told_to_leave(launcher: Launcher) -> None:
    """The healthy replicas leave at the same time, and one of them may be heard first."""

    def take_part() -> None:
        with launcher.taking_part(assignment(1), None, lambda: None):
            launcher._take({"leave": 1})
            raise CorruptedReplicaError([0])

    with pytest.raises(CorruptedReplicaError):
        take_part()
