"""Several wait for updates of the same keys, and none of them misses one."""

import asyncio

import pytest

from onecurve.coordination.clock import ServingClock
from onecurve.coordination.local import LocalCoordination
from onecurve.coordination.state import KeyValueState
from onecurve.describe.errors import OnecurveError
from onecurve.hosts.followed_keys import FollowedKeys


def test_an_update_that_another_one_waited_for_is_not_lost():
    async def scenario():
        coordination = LocalCoordination(KeyValueState(), ServingClock())
        with FollowedKeys(coordination) as followed:
            seen: dict[str, str | None] = {}
            followed.follow("hosts/", lambda host, change: seen.update({host: change.value}))
            busy, waiting = followed.updates(), followed.updates()
            await waiting.wait()  # the listing
            await coordination.put("hosts/a", "1")
            await waiting.wait()
            assert seen == {"a": "1"}
            assert await busy.wait_for(1.0)
            assert not await busy.wait_for(0.01), "an update is reported once"
            assert not await waiting.wait_for(0.01)

    asyncio.run(asyncio.wait_for(scenario(), 10))


def test_a_failure_is_raised_for_everyone_every_time():
    def refuse(_: str, change: object) -> None:
        raise OnecurveError(f"{change} is not readable")

    async def scenario():
        coordination = LocalCoordination(KeyValueState(), ServingClock())
        await coordination.put("hosts/a", "?")
        with FollowedKeys(coordination) as followed:
            followed.follow("hosts/", refuse)
            early = followed.updates()
            for updates in (early, early, followed.updates()):
                with pytest.raises(OnecurveError, match="not readable"):
                    await updates.wait()

    asyncio.run(asyncio.wait_for(scenario(), 10))
