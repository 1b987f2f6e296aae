"""The descriptions are values: they can be hashed, compared and shared, and nobody can change them."""

import dataclasses
import pkgutil
from importlib import import_module

import pytest

import onecurve.describe

MODULES = [
    import_module(f"onecurve.describe.{module.name}") for module in pkgutil.iter_modules(onecurve.describe.__path__)
]
CLASSES = [
    kind
    for module in MODULES
    for kind in vars(module).values()
    if dataclasses.is_dataclass(kind) and kind.__module__ == module.__name__
]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__qualname__)
def test_every_description_is_frozen(kind: type) -> None:
    assert kind.__dataclass_params__.frozen
