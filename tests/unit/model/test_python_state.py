"""A trial leaves no trace in the Python values that a forward or a loss changes."""

import importlib
import itertools
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from onecurve.model import python_state
from onecurve.model.python_state import python_state_kept

STEPS = 0
HISTORY = {"losses": [0.0]}


class Settings:
    def __init__(self) -> None:
        self.warmup = 3


class Stateful(nn.Module):
    """Changes a value in every place where a forward can keep one."""

    total = 0

    def __init__(self) -> None:
        super().__init__()
        self.steps, self.settings = 0, Settings()
        self.nested = {"seen": [1, {2}], "queue": deque([1], maxlen=2)}
        self.centre, self.counts = torch.zeros(2), np.zeros(2)
        self.draws, self.generator, self.numbers = random.Random(1), np.random.default_rng(1), torch.Generator()
        self.layer = nn.Linear(2, 2)
        self.hook = None

    def forward(self, x: Tensor) -> Tensor:
        global STEPS
        STEPS += 1
        HISTORY["losses"].append(float(STEPS))
        Stateful.total += 1
        type(self).latest = x
        self.steps += 1
        self.settings.warmup -= 1
        self.nested["seen"][1].add(3)
        self.nested["queue"].append(2)
        self.nested["new"] = x
        self.centre.add_(1)
        self.counts += 1
        self.draws.random(), self.generator.random(), torch.rand(1, generator=self.numbers)
        self.extra = nn.Linear(2, 2)
        self.made = nn.Parameter(torch.ones(2))
        self.register_buffer("seen", x)
        return self.layer(x)


def state(model: Stateful) -> list[Any]:
    return [
        STEPS,
        [*HISTORY["losses"]],
        Stateful.total,
        hasattr(Stateful, "latest"),
        model.steps,
        model.settings.warmup,
        repr(model.nested),
        model.centre.tolist(),
        model.counts.tolist(),
        model.draws.getstate(),
        str(model.generator.bit_generator.state),
        model.numbers.get_state().tolist(),
        [name for name, _ in model.named_modules()],
        [name for name, _ in model.named_parameters()],
        [name for name, _ in model.named_buffers()],
        sorted(vars(model)),
    ]


def test_a_forward_leaves_no_trace() -> None:
    model = Stateful()
    before = state(model)
    with python_state_kept(model):
        model(torch.ones(2))
        changed = state(model)
    assert all(one != other for one, other in zip(before[:-1], changed, strict=False))
    assert state(model) == before
    with torch.no_grad():
        assert model(torch.ones(2)).shape == (2,)  # it can run for the first time again


def annealed() -> Callable[[], int]:
    count = 0

    def loss() -> int:
        nonlocal count
        count += 1
        return count

    return loss


class Annealed:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> int:
        self.count += 1
        return self.count

    def method(self) -> int:
        return self()


@cache
def table(size: int) -> list[int]:
    return [size]


def cached() -> int:
    table(3).append(0)
    return len(table(3))


@pytest.mark.parametrize(
    "make", [annealed, Annealed, lambda: Annealed().method, lambda: partial(Annealed()), lambda: cached]
)
def test_a_loss_leaves_no_trace(make: Callable[[], Callable[[], int]]) -> None:
    loss = make()
    with python_state_kept(loss):
        first = [loss(), loss()]
    assert [loss(), loss()] == first


def test_a_generator_that_was_advanced_is_named(caplog: pytest.LogCaptureFixture) -> None:
    def factors() -> Iterator[int]:
        yield from itertools.count()

    drawn = factors()
    with python_state_kept(lambda: next(drawn)):
        pass
    assert not caplog.records
    with python_state_kept(lambda: next(drawn)):
        next(drawn)
    assert "has advanced the generator" in caplog.text


def test_the_state_of_a_script_named_like_a_module_of_python_is_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "profile.py"
    script.write_text("STEPS = {'done': 0}\ndef forward(x):\n    STEPS['done'] += 1\n    return x\n")
    monkeypatch.delitem(sys.modules, "profile", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("profile")
    monkeypatch.setitem(sys.modules, "profile", module)
    python_state._is_foreign.cache_clear()
    with python_state_kept(module.forward):
        module.forward(1)
    assert module.STEPS == {"done": 0}
    python_state._is_foreign.cache_clear()
