"""Seeds, saves and restores random generators: the host's three (Python's, NumPy's and torch's), and the device's."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def seed_all(seed: int) -> None:
    """Seed the generators of Python, NumPy and torch (CPU only)."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed)


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
def own_random_stream(device_kind: str, seed: int) -> Iterator[None]:
    """Context manager in which the current device draws from another seed; its generator is restored on exit."""
    generators = torch if device_kind == "cpu" else torch.get_device_module(device_kind)
    state = generators.get_rng_state()
    generators.manual_seed(seed)
    try:
        yield
    finally:
        generators.set_rng_state(state)
