"""Seeds, saves and restores the host's three random generators: Python's, NumPy's and torch's."""

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
