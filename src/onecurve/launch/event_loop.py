"""Runs a coroutine from ordinary code, also in a notebook, whose thread runs an event loop already."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from onecurve.describe.errors import SignalName
from onecurve.launch.message_socket import MessageSocket
from onecurve.launch.stop import STOP_SIGNALS

T = TypeVar("T")


def run_to_end(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run the coroutine that `work` makes, and return its result."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work())
    return _run_in_thread(work)


def _run_in_thread(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run the coroutine in an event loop of another thread. An interrupt of this thread cancels it."""
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any] | None]] = []

    async def run() -> T:
        running.append((asyncio.get_running_loop(), asyncio.current_task()))
        return await work()

    with ThreadPoolExecutor(1, "onecurve launcher") as thread:
        future = thread.submit(lambda: asyncio.run(run()))
        try:
            return future.result()
        except KeyboardInterrupt:
            for loop, task in running:
                if task is not None:
                    loop.call_soon_threadsafe(task.cancel)
            raise


async def readable(source: MessageSocket) -> None:
    """Wait until a message has arrived, or the other side is gone."""
    loop, arrived = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(source, arrived.set)
    try:
        await arrived.wait()
    finally:
        loop.remove_reader(source)


async def first_to_end(*work: Awaitable[T]) -> T:
    """Return the result of the first to end, or raise its error; the others are cancelled."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(task for task in tasks if task.done()).result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def stop_signals(handle: Callable[[SignalName], None]) -> Iterator[None]:
    """Call `handle` for each signal that asks to stop. Only the main thread of a process can receive signals."""
    loop = asyncio.get_running_loop()
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    for number, name in STOP_SIGNALS.items():
        loop.add_signal_handler(number, handle, name)
    try:
        yield
    finally:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)
