"""The launcher's side of a rank process."""

import signal
from collections.abc import Iterator

import pytest

from onecurve.describe.assignment import Assignment, RankFailure
from onecurve.describe.generation import Generation, StoreAddress
from onecurve.launch.message_socket import MessageSocket
from onecurve.launch.rank_process import RankProcess


@pytest.fixture
def rank() -> Iterator[RankProcess]:
    channel, other = MessageSocket.pair()
    yield RankProcess(
        number=0,
        channel=channel,
        say=print,
        on_slot=lambda *_: None,
        kernel_killed=lambda: True,
        row_servers=lambda _: pytest.fail("nobody asks for row servers"),
        on_straggler=lambda _: None,
    )
    channel.close()
    other.close()


def test_a_rank_that_has_died_between_two_generations_has_failed_in_the_next(rank: RankProcess) -> None:
    rank.exited(-signal.SIGKILL)
    generation = Generation(number=2, size=2, hosts=1, store=StoreAddress("127.0.0.1", 1, ""))
    rank.assign(Assignment(generation=generation, rank=1, local_rank=1, local_size=2, interface="lo"), {})
    assert rank.failure is not None
    assert rank.failure.rank == 1
    assert rank.failure.exit_status == -signal.SIGKILL
    assert rank.failure.is_out_of_memory


def test_a_rank_that_was_killed_does_not_go_on_even_if_it_has_not_ended_yet(rank: RankProcess) -> None:
    rank.failure = RankFailure(rank=0, time=0.0, text="it had not left", lost_connection=True)
    assert rank.can_go_on
    rank.kill()
    assert not rank.can_go_on
