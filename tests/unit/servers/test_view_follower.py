"""Servers change the view by compare-and-swap, and only on what they know of the newest one."""

import asyncio

import pytest

from onecurve.coordination.clock import ServingClock
from onecurve.coordination.local import LocalCoordination
from onecurve.coordination.state import KeyValueState
from onecurve.describe.errors import OnecurveError
from onecurve.params.view import Piece, ServerAddress, View
from onecurve.servers.view_follower import SERVERS_PREFIX, VIEW_KEY, ViewFollower, decoded_view, encoded

SERVERS = {name: ServerAddress(f"{name}:1", name) for name in "abc"}


def joining(epoch: int, since: int) -> View:
    return View(epoch, {0: Piece(end=4_096, primary="a", backup="b", joining="c", since=since)}, SERVERS)


async def followed(view: View, name: str = "a") -> tuple[LocalCoordination, ViewFollower, asyncio.Task[None]]:
    coordination = LocalCoordination(KeyValueState(), ServingClock())
    for server, address in SERVERS.items():
        await coordination.create(SERVERS_PREFIX + server, encoded(address))
    await coordination.create(VIEW_KEY, encoded(view))
    follower = ViewFollower(name, coordination, lambda _: None)
    task = asyncio.create_task(follower.follow())
    await asyncio.sleep(0.05)
    return coordination, follower, task


async def current(coordination: LocalCoordination) -> View:
    entry = await coordination.get(VIEW_KEY)
    assert entry is not None
    return decoded_view(entry.value)


def test_a_server_that_has_begun_to_join_anew_does_not_take_part() -> None:
    async def check() -> None:
        coordination, follower, task = await followed(joining(epoch=7, since=7))
        await follower.take_part(5, {0: "c"})
        assert (await current(coordination)).epoch == 7
        await follower.take_part(7, {0: "c"})
        assert (await current(coordination)).pieces[0].backup == "c"
        task.cancel()

    asyncio.run(check())


def test_the_backup_of_a_dead_server_takes_its_place() -> None:
    async def check() -> None:
        coordination, follower, task = await followed(joining(epoch=7, since=7), "b")
        await follower.report_dead("a")
        await asyncio.sleep(0.05)
        view = await current(coordination)
        assert "a" not in view.servers
        assert view.pieces[0].primary == "b"
        task.cancel()

    asyncio.run(check())


def test_a_server_that_was_taken_for_dead_ends() -> None:
    async def check() -> None:
        coordination, follower, task = await followed(joining(epoch=7, since=7))
        other = ViewFollower("b", coordination, lambda _: None)
        others = asyncio.create_task(other.follow())
        await follower.report_dead("a")
        with pytest.raises(OnecurveError, match="taken for dead"):
            await asyncio.wait_for(task, 1)
        others.cancel()

    asyncio.run(check())


def test_after_the_service_was_away_servers_have_time_to_say_that_they_live() -> None:
    async def check() -> None:
        forgotten = list[str]()
        coordination = LocalCoordination(KeyValueState(), ServingClock())
        for server, address in SERVERS.items():
            await coordination.create(SERVERS_PREFIX + server, encoded(address))
        await coordination.create(VIEW_KEY, encoded(joining(epoch=7, since=7)))
        follower = ViewFollower("a", coordination, lambda _: None, lambda: forgotten.append("a"))
        task = asyncio.create_task(follower.follow())
        await asyncio.sleep(0.05)
        follower.note_out_of_touch()
        for name in SERVERS:
            await coordination.delete(SERVERS_PREFIX + name)
        await asyncio.sleep(0.05)
        assert forgotten == ["a"]
        for name in ("a", "b"):
            await coordination.put(SERVERS_PREFIX + name, encoded(SERVERS[name]))
        in_touch = asyncio.create_task(follower.note_in_touch())
        await asyncio.sleep(0.05)
        assert [*(await current(coordination)).servers] == ["a", "b", "c"], "not yet"
        await in_touch
        await asyncio.sleep(0.05)
        assert [*(await current(coordination)).servers] == ["a", "b"], "c has not come back"
        assert not task.done()
        task.cancel()

    asyncio.run(check())
