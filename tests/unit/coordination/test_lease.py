"""Leases as their owner holds them."""

import asyncio
import time

import pytest

from onecurve.coordination.clock import ServingClock
from onecurve.coordination.errors import UnreachableError
from onecurve.coordination.lease import Lease


async def nothing() -> None:
    pass


@pytest.mark.parametrize("failure", ["silent", "unreachable"])
def test_a_lease_whose_renewals_are_not_confirmed_is_lost_when_its_time_is_over(failure):
    async def scenario():
        async def renew() -> bool:
            if failure == "silent":
                await asyncio.sleep(60)
            raise UnreachableError("no route")

        loop = asyncio.get_running_loop()
        start = loop.time()
        lease = Lease(1, 0.6, start, renew, nothing)
        await asyncio.wait_for(lease.lost.wait(), 30)
        assert loop.time() - start >= 0.59

    asyncio.run(scenario())


def test_a_lease_that_the_service_does_not_know_is_lost_at_the_next_renewal():
    async def scenario():
        async def renew() -> bool:
            return False

        lease = Lease(1, 0.3, asyncio.get_running_loop().time(), renew, nothing)
        await asyncio.wait_for(lease.lost.wait(), 30)

    asyncio.run(scenario())


def test_a_late_confirmation_counts_from_when_the_renewal_was_sent():
    async def scenario():
        sent: list[float] = []

        async def renew() -> bool:
            sent.append(asyncio.get_running_loop().time())
            if len(sent) > 1:
                await asyncio.sleep(60)
            await asyncio.sleep(1.0)
            return True

        lease = Lease(1, 1.8, asyncio.get_running_loop().time(), renew, nothing)
        await asyncio.wait_for(lease.lost.wait(), 30)
        assert asyncio.get_running_loop().time() - sent[0] < 1.8 + 0.9, "not 1.0 s later, when it was confirmed"

    asyncio.run(scenario())


def test_the_clock_of_a_server_that_was_stopped_does_not_jump(monkeypatch):
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    clock = ServingClock()
    for _ in range(10):
        now += 0.1
        clock.tick()
    assert clock.now() == pytest.approx(1.0)
    now += 60.0
    assert clock.now() == pytest.approx(1.5)
    clock.tick()
    now += 0.1
    assert clock.tick() == pytest.approx(1.6)
