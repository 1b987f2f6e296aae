"""Results of the predictor are cached and shared between plans, so nobody may change them."""

import dataclasses
import pkgutil
from importlib import import_module

import pytest

import onecurve.estimate

MODULES = [
    import_module(f"onecurve.estimate.{module.name}") for module in pkgutil.iter_modules(onecurve.estimate.__path__)
]
CLASSES = [
    kind
    for module in MODULES
    for kind in vars(module).values()
    if dataclasses.is_dataclass(kind) and kind.__module__ == module.__name__
]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__qualname__)
def test_every_result_is_frozen(kind: type) -> None:
    assert kind.__dataclass_params__.frozen
