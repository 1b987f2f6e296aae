"""Runs a coroutine from ordinary code, also in a notebook, whose thread runs an event loop already."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
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
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(asyncio.run(work()))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="onecurve launcher")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


async def readable(source: MessageSocket) -> None:
    """Wait until a message has arrived, or the other side is gone."""
    loop, arrived = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(source, arrived.set)
    try:
        await arrived.wait()
    finally:
        loop.remove_reader(source)


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
