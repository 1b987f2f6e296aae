"""Watches that list the keys again after an interruption."""

import asyncio

import pytest

from onecurve.coordination.entry import Change
from onecurve.coordination.errors import UnreachableError
from onecurve.coordination.watch import Watch


def test_a_second_listing_reports_only_what_differs():
    async def scenario():
        watch = Watch("hosts/", lambda: None)
        watch.add_listing([Change("hosts/a", "1", 1), Change("hosts/b", "1", 2), Change("hosts/c", "1", 3)], 3)
        watch.add_changes([Change("hosts/d", "1", 4), Change("hosts/c", None, 5)])
        assert len(await anext(watch)) == 3
        assert len(await anext(watch)) == 2
        watch.add_listing([Change("hosts/a", "1", 1), Change("hosts/d", "2", 7), Change("hosts/e", "1", 8)], 9)
        assert await anext(watch) == [
            Change("hosts/d", "2", 7),
            Change("hosts/e", "1", 8),
            Change("hosts/b", None, 9),
        ]
        watch.add_listing([Change("hosts/a", "1", 1), Change("hosts/d", "2", 7), Change("hosts/e", "1", 8)], 9)
        watch.add_changes([Change("hosts/a", "2", 10)])
        assert await anext(watch) == [Change("hosts/a", "2", 10)], "a listing without differences is not reported"

    asyncio.run(scenario())


def test_a_failed_watch_raises_after_what_was_reported_before():
    async def scenario():
        watch = Watch("hosts/", lambda: None)
        watch.add_listing([], 0)
        watch.fail(UnreachableError("gone"))
        assert await anext(watch) == []
        with pytest.raises(UnreachableError, match="gone"):
            await anext(watch)

    asyncio.run(scenario())
