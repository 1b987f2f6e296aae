"""Seeds, saves and restores random generators: the host's three (Python's, NumPy's and torch's), and the device's."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def seed_all(seed: int) -> None:
    """Seed the generators of Python, NumPy and torch (CPU only)."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed)


def python_and_numpy_state() -> tuple[Any, Any]:
    """The states of the generators that torch's activation checkpointing does not know."""
    return random.getstate(), np.random.get_state()


def set_python_and_numpy_state(state: tuple[Any, Any]) -> None:
    """Set the states that `python_and_numpy_state` returned."""
    random.setstate(state[0])
    np.random.set_state(state[1])


@contextmanager
def preserve_rng_state() -> Iterator[None]:
    """Context manager that restores the host's generators on exit."""
    python_state, numpy_state, torch_state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        torch.set_rng_state(torch_state)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Context manager in which the host's generators begin with this seed; their states are restored on exit.

    It surrounds every call of a user's function that builds something, so that a function that draws (a random split
    without a generator) builds the same in every process and at every start.
    """
    with preserve_rng_state():
        seed_all(seed)
        yield


@contextmanager
def own_random_stream(device_kind: str, seed: int) -> Iterator[None]:
    """Context manager in which the current device draws from another seed; its generator is restored on exit."""
    generators = torch if device_kind == "cpu" else torch.get_device_module(device_kind)
    state = generators.get_rng_state()
    generators.manual_seed(seed)
    try:
        yield
    finally:
        generators.set_rng_state(state)
