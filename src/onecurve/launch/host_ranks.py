"""The rank processes of this host, and how one generation of them ends."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Self

from onecurve.describe.assignment import Assignment, RankFailure
from onecurve.describe.errors import OnecurveError, SignalName
from onecurve.launch.failure import CAUSE_SECONDS, is_cause
from onecurve.launch.message_socket import Message, MessageSocket
from onecurve.launch.rank_process import RankProcess
from onecurve.launch.template_process import TemplateProcess

_EXIT_SECONDS = 10.0
"""A rank that has nothing more to do ends within this time, or is killed."""

_log = logging.getLogger(__name__)


class HostRanks:
    """Starts ranks from a template, and takes in what they say while the event loop runs."""

    def __init__(self, template: TemplateProcess) -> None:
        self._template = template
        self._ranks: list[RankProcess] = []
        self._numbers: list[int] = []
        """The numbers that the template gave the ranks."""
        self._changed = asyncio.Event()
        self._lost_template: Exception | None = None

    @property
    def has_started(self) -> bool:
        return bool(self._ranks)

    async def start(self, count: int, verb: str, request: str, say: Callable[[str], None]) -> None:
        """Start `count` ranks for a request, which then wait for an assignment. `say`: told what ranks want shown."""
        await self._template.ready()
        loop = asyncio.get_running_loop()
        for _ in range(count):
            channel, other = MessageSocket.pair()
            rank = RankProcess(local_rank=len(self._ranks), channel=channel, say=say)
            self._ranks.append(rank)
            with other:
                number = self._template.fork(verb, request, other.fileno(), partial(self._on_report, rank))
            self._numbers.append(number)
            loop.add_reader(channel, self._on_message, rank)

    async def run(self, assignments: Sequence[Assignment]) -> list[str]:
        """Run one generation; return the ranks' results.

        Raises RanksFailedError when a rank fails; the others are killed then.
        """
        for rank, assignment in zip(self._ranks, assignments, strict=True):
            rank.assign(assignment)
        while True:
            if any(rank.failure for rank in self._ranks):
                await self._wait_for_cause()
                self.kill()
                raise RanksFailedError([rank.failure for rank in self._ranks if rank.failure])
            results = [rank.result for rank in self._ranks if rank.result is not None]
            if len(results) == len(self._ranks):
                return results
            await self._change()

    def stop(self, name: SignalName) -> None:
        """Ask all ranks to finish their step and end."""
        for rank in self._ranks:
            rank.stop(name)

    def kill(self) -> None:
        for rank in self._ranks:
            rank.kill()

    async def dismiss(self) -> None:
        """Let the ranks end, because there is no further generation."""
        for rank in self._ranks:
            self._close_channel(rank)
        with suppress(TimeoutError):
            async with asyncio.timeout(_EXIT_SECONDS):
                while not all(rank.has_exited for rank in self._ranks):
                    await self._change()
        self.kill()

    def close(self) -> None:
        """Kill the ranks that still live, and forget them all."""
        self.kill()
        for number in self._numbers:
            self._template.forget(number)
        for rank in self._ranks:
            self._close_channel(rank)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.close()

    async def _wait_for_cause(self) -> None:
        """Wait until a rank has failed by itself, not because another one is gone."""
        deadline = time.monotonic() + CAUSE_SECONDS
        while not any(rank.failure and is_cause(rank.failure) for rank in self._ranks):
            running = [rank for rank in self._ranks if not rank.failure and rank.result is None]
            remaining = deadline - time.monotonic()
            if not running or remaining <= 0:
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(self._change(), remaining)

    async def _change(self) -> None:
        """Wait for news of a rank."""
        await self._changed.wait()
        self._changed.clear()
        if self._lost_template is not None:
            raise self._lost_template

    def _on_message(self, rank: RankProcess) -> None:
        rank.read()
        if rank.channel.is_closed:
            self._close_channel(rank)
        self._changed.set()

    def _on_report(self, rank: RankProcess, report: Message) -> None:
        """Take in what the template reports about a rank."""
        if report["event"] == "started":
            rank.pid = report["pid"]
        elif report["event"] == "ended":
            _log.info("rank %d, process %s, ended with status %d", rank.rank, rank.pid, report["status"])
            rank.exited(report["status"])
        else:
            self._lost_template = OnecurveError(report["reason"])
        self._changed.set()

    def _close_channel(self, rank: RankProcess) -> None:
        if rank.channel.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(rank.channel)
            rank.channel.close()


class RanksFailedError(Exception):
    """Ranks of this host have failed."""

    def __init__(self, failures: Sequence[RankFailure]) -> None:
        super().__init__(f"{len(failures)} ranks failed")
        self.failures = failures
