"""Starts ranks on this host, from one template, as often as needed."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from onecurve.describe.errors import InterruptError, SignalName
from onecurve.describe.generation import Generation
from onecurve.describe.host import HostAssignment
from onecurve.launch.event_loop import run_to_end, stop_signals
from onecurve.launch.failure import first_failure
from onecurve.launch.host_ranks import HostRanks, RanksFailedError
from onecurve.launch.store import served_store
from onecurve.launch.template_process import TemplateProcess

_LOOPBACK = "127.0.0.1"
_LOOPBACK_DEVICE = "lo"


@dataclass(frozen=True)
class Ended:
    """How the ranks of a host ended, without a failure."""

    results: Sequence[str] | None
    """What each rank returned; None if a second signal killed them."""
    signal: SignalName | None = None
    """The first signal that this process received."""


class LocalRanks:
    """Ranks on this host. The template begins to import when this is created; `run` and `ask` start ranks.

    Nothing is reachable from other hosts: the ranks meet at the loopback device.
    """

    def __init__(self, program: str, verb: str, request: str, say: Callable[[str], None] = lambda _: None) -> None:
        """`program`: import path of the ranks' program, see `RankProgram`. `verb`, `request`: what is imported for.
        `say`: told what ranks want shown, and why a start is slow."""
        self.template = TemplateProcess(program, verb, request, say)
        self._say = say

    def run(self, verb: str, request: str, ranks: int = 1) -> Ended:
        """Start `ranks` ranks, and wait until all have done their work.

        Raises RankFailedError if a rank fails. After Ctrl-C, SIGTERM or SIGHUP all ranks finish their step and end; a
        second signal kills them.
        """
        return run_to_end(lambda: self._run(verb, request, ranks))

    def ask(self, verb: str, request: str, ranks: int = 1) -> str:
        """Return what one process answers, or the first of several. Raises InterruptError if a signal arrives first."""
        return _answer(self.run(verb, request, ranks))

    async def ask_in_loop(self, verb: str, request: str) -> str:
        """The same as `ask`, in an event loop whose owner handles signals."""
        with HostRanks(self.template, verb, request, self._say) as ranks:
            try:
                return (await self._work(ranks, 1))[0]
            except RanksFailedError as error:
                raise first_failure(error.failures) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.template.close()

    async def _run(self, verb: str, request: str, count: int) -> Ended:
        received: list[SignalName] = []
        with HostRanks(self.template, verb, request, self._say) as ranks:
            work = asyncio.ensure_future(self._work(ranks, count))

            def stop(name: SignalName) -> None:
                received.append(name)
                if len(received) == 1 and ranks.has_started:
                    ranks.stop(name)
                else:
                    work.cancel()

            with stop_signals(stop):
                try:
                    return Ended(await work, received[0] if received else None)
                except asyncio.CancelledError:
                    if not received:
                        raise
                    return Ended(None, received[0])
                except RanksFailedError as error:
                    if received and all(failure.is_interrupt for failure in error.failures):
                        return Ended(None, received[0])
                    raise first_failure(error.failures) from None

    async def _work(self, ranks: HostRanks, count: int) -> list[str]:
        """Start the ranks of one generation, and return their results."""
        async with served_store(_LOOPBACK) as store:
            await ranks.start(count)
            generation = Generation(number=1, size=count, hosts=1, store=store)
            assigned = HostAssignment(generation=generation, work=ranks.verb, ranks=count)
            try:
                results = await ranks.run(assigned.of_ranks(_LOOPBACK_DEVICE))
            except RanksFailedError:
                await ranks.wait_for_cause()
                raise RanksFailedError(ranks.failures) from None
            await ranks.dismiss()
            return results


def _answer(ended: Ended) -> str:
    if ended.signal is not None or ended.results is None:
        raise InterruptError("interrupted", ended.signal or "SIGINT")
    return ended.results[0]
