"""Replaces the random numbers that a model draws in forward by constants.

Stochastic depth, layer drop, masking and sampled noise draw other numbers under every plan, by design: another split
draws in another order. Constants are the same under every plan, so that everything else can be compared. They do not
depend on the sample, its position in the batch or the size of the batch.
"""

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from onecurve.prove.backward_function_mode import BackwardFunctionMode

Draw = Callable[[Tensor, tuple[Any, ...], dict[str, Any]], object]
"""Overwrites a drawn tensor, given the arguments of the function that drew it."""


_OWN_DRAWS = ("torch", "numpy", "random", "tempfile", "uuid")
"""Libraries that draw for themselves (a unique name), not for the model."""


class ConstantDraws(BackwardFunctionMode):
    """While this mode is active, torch, NumPy and Python's `random` draw constants."""

    def __init__(self) -> None:
        super().__init__()
        self.triggered = False
        """True if a draw was replaced."""
        self._paused = False
        self._originals: list[tuple[Any, str, Any]] = []
        self._depth = 0  # backward enters the mode a second time

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A context in which draws are real: the dataset's own."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def __enter__(self) -> "ConstantDraws":
        super().__enter__()  # type: ignore[no-untyped-call]
        if not self._depth:
            for library, functions in ((np.random, _NUMPY), (random, _PYTHON)):
                for name, constant in functions.items():
                    original = getattr(library, name)
                    self._originals.append((library, name, original))
                    setattr(library, name, self._replacement(original, constant))
        self._depth += 1
        return self

    def __exit__(self, *error: Any) -> None:
        self._depth -= 1
        if not self._depth:
            for library, name, original in self._originals:
                setattr(library, name, original)
            self._originals.clear()
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def call(self, function: Any, arguments: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._paused:
            return function(*arguments, **kwargs)
        if function is F.gumbel_softmax:
            self.triggered = True
            return _softmax_without_noise(
                *arguments, **{name: value for name, value in kwargs.items() if name != "eps"}
            )
        if function not in _TORCH:
            return function(*arguments, **kwargs)
        self.triggered = True
        state = torch.get_rng_state()
        drawn = function(*arguments, **kwargs)
        torch.set_rng_state(state)
        with torch.no_grad():
            _TORCH[function](drawn, arguments, kwargs)
        return drawn

    def _replacement(self, original: Any, constant: Any) -> Any:
        def draw(*arguments: Any, **kwargs: Any) -> Any:
            caller = str(sys._getframe(1).f_globals.get("__name__", ""))
            if self._paused or caller.partition(".")[0] in _OWN_DRAWS:
                return original(*arguments, **kwargs)
            self.triggered = True
            return constant(*arguments, **kwargs)

        return draw


def _fill(value: float) -> Draw:
    return lambda drawn, _, __: drawn.fill_(value)


def _middle(drawn: Tensor, arguments: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Tensor.uniform_(from, to): the middle."""
    low = kwargs.get("from", arguments[1] if len(arguments) > 1 else 0.0)
    high = kwargs.get("to", arguments[2] if len(arguments) > 2 else 1.0)
    drawn.fill_((low + high) / 2)


def _half_deviation(drawn: Tensor, arguments: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Tensor.normal_(mean, std): half a standard deviation above the mean."""
    mean = kwargs.get("mean", arguments[1] if len(arguments) > 1 else 0.0)
    std = kwargs.get("std", arguments[2] if len(arguments) > 2 else 1.0)
    drawn.fill_(mean + 0.5 * std)


def _half_deviation_of_tensors(drawn: Tensor, arguments: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """torch.normal(mean, std, …), where each may be a tensor."""
    mean = kwargs.get("mean", arguments[0] if arguments else 0.0)
    std = kwargs.get("std", arguments[1] if len(arguments) > 1 else 1.0)
    drawn.copy_(torch.zeros_like(drawn) + mean + 0.5 * std)


def _likelier(drawn: Tensor, arguments: tuple[Any, ...], _: dict[str, Any]) -> None:
    """torch.bernoulli(probabilities)"""
    probabilities = arguments[0]
    if len(arguments) > 1 and isinstance(arguments[1], float):
        drawn.fill_(float(arguments[1] >= 0.5))
    else:
        drawn.copy_((probabilities >= 0.5).to(drawn.dtype))


def _likelier_in_place(drawn: Tensor, arguments: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Tensor.bernoulli_(p), where p is a number or a tensor."""
    probability = kwargs.get("p", arguments[1] if len(arguments) > 1 else 0.5)
    if isinstance(probability, Tensor):
        drawn.copy_((probability >= 0.5).to(drawn.dtype))
    else:
        drawn.fill_(float(probability >= 0.5))


def _middle_integer(drawn: Tensor, arguments: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """torch.randint([low,] high, size) and torch.randint_like(input, [low,] high)"""
    bounds = [argument for argument in arguments if isinstance(argument, int)]
    high = kwargs.get("high", bounds[-1] if bounds else 1)
    low = kwargs.get("low", bounds[-2] if len(bounds) > 1 else 0)
    drawn.fill_((low + high) // 2)


def _identity_permutation(drawn: Tensor, _: tuple[Any, ...], __: dict[str, Any]) -> None:
    drawn.copy_(torch.arange(len(drawn), device=drawn.device))


def _most_likely(drawn: Tensor, arguments: tuple[Any, ...], _: dict[str, Any]) -> None:
    """torch.multinomial(probabilities, samples)"""
    classes = arguments[0].shape[-1]
    order = arguments[0].argsort(dim=-1, descending=True, stable=True)
    drawn.copy_(order[..., torch.arange(drawn.shape[-1], device=drawn.device) % classes])


def _softmax_without_noise(logits: Tensor, tau: float = 1, hard: bool = False, _: float = 0, dim: int = -1) -> Any:
    """F.gumbel_softmax(logits, tau, hard, eps, dim)"""
    soft = (logits / tau).softmax(dim)
    if not hard:
        return soft
    index = soft.max(dim, keepdim=True)[1]
    return torch.zeros_like(logits).scatter_(dim, index, 1.0) - soft.detach() + soft


_TORCH: dict[Any, Draw] = {
    torch.rand: _fill(0.5),
    torch.rand_like: _fill(0.5),
    torch.randn: _fill(0.5),
    torch.randn_like: _fill(0.5),
    torch.normal: _half_deviation_of_tensors,
    torch.randint: _middle_integer,
    torch.randint_like: _middle_integer,
    torch.randperm: _identity_permutation,
    torch.bernoulli: _likelier,
    Tensor.bernoulli: _likelier,
    torch.multinomial: _most_likely,
    Tensor.multinomial: _most_likely,
    torch.poisson: lambda drawn, arguments, _: drawn.copy_(arguments[0].floor()),
    Tensor.uniform_: _middle,
    Tensor.normal_: _half_deviation,
    Tensor.bernoulli_: _likelier_in_place,
    Tensor.exponential_: _fill(1.0),
    Tensor.random_: _fill(0.0),
}


def _numpy_full(*shape: int) -> Any:
    return np.full(shape, 0.5) if shape else 0.5


def _numpy_uniform(low: Any = 0.0, high: Any = 1.0, size: Any = None) -> Any:
    middle = (low + high) / 2
    return middle if size is None else np.full(size, middle)


def _numpy_normal(loc: Any = 0.0, scale: Any = 1.0, size: Any = None) -> Any:
    return loc + 0.5 * scale if size is None else np.full(size, loc + 0.5 * scale)


def _numpy_integer(low: Any, high: Any = None, size: Any = None, dtype: Any = int) -> Any:
    middle = low // 2 if high is None else (low + high) // 2
    return dtype(middle) if size is None else np.full(size, middle, dtype)


def _numpy_choice(a: Any, size: Any = None, *_: Any, **__: Any) -> Any:
    values = np.arange(a) if isinstance(a, int | np.integer) else np.asarray(a)
    return values[0] if size is None else np.resize(values, size)


_NUMPY: dict[str, Callable[..., Any]] = {
    "rand": _numpy_full,
    "randn": _numpy_full,
    "random": lambda size=None: _numpy_uniform(size=size),
    "random_sample": lambda size=None: _numpy_uniform(size=size),
    "uniform": _numpy_uniform,
    "normal": _numpy_normal,
    "randint": _numpy_integer,
    "choice": _numpy_choice,
    "permutation": lambda x: np.arange(x) if isinstance(x, int | np.integer) else np.asarray(x).copy(),
    "shuffle": lambda _: None,
}

_PYTHON: dict[str, Callable[..., Any]] = {
    "random": lambda: 0.5,
    "uniform": lambda a, b: (a + b) / 2,
    "gauss": lambda mu=0.0, sigma=1.0: mu + 0.5 * sigma,
    "normalvariate": lambda mu=0.0, sigma=1.0: mu + 0.5 * sigma,
    "randint": lambda a, b: (a + b) // 2,
    "randrange": lambda start, stop=None, *_, **__: 0 if stop is None else start,
    "choice": lambda sequence: sequence[0],
    "choices": lambda population, *_, k=1, **__: [population[0]] * k,
    "sample": lambda population, k, **_: list(population)[:k],
    "shuffle": lambda _: None,
}
