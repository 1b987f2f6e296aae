"""`help(oc.NAME)` is a complete reference: every public name has a docstring with all its fields and an example that
runs."""

import ast
import inspect
import re
import textwrap
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import onecurve as oc

SCRIPT = """
import torch
from torch import nn
import onecurve as oc

class Points:
    def __len__(self):
        return 32

    def __getitem__(self, index):
        return torch.full((3,), index / 32), torch.tensor([index / 32])

def job(lr: float = 1e-2, steps: int = 4) -> oc.Job:
    return oc.Job(
        model=lambda: nn.Linear(3, 1), data=Points, loss=oc.loss.mse, optimizer=oc.AdamW(lr=lr), global_batch=8,
        steps=steps, evaluate=oc.Evaluate(Points, every=4),
    )
"""


class MyModel(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 10)


class MyDataset:
    def __init__(self, train: bool = True) -> None:
        self.train = train

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((4,), float(index)), index % 10


def public_names() -> dict[str, Any]:
    """All names of `onecurve` and of the modules that it exports, such as `loss.mse`."""
    names = {name: getattr(oc, name) for name in oc.__all__}
    for module_name, module in list(names.items()):
        if isinstance(module, ModuleType):
            own = {name: value for name, value in vars(module).items() if callable(value) and not name.startswith("_")}
            names |= {f"{module_name}.{n}": v for n, v in own.items() if v.__module__ == module.__name__}
    return names


NAMES = public_names()
NO_DEFAULT = inspect.Parameter.empty


def defaults_of(value: Any) -> dict[str, Any]:
    """The fields of a dataclass, or the parameters of a function → the default, or `NO_DEFAULT`."""
    is_protocol = getattr(value, "_is_protocol", False)  # nobody makes one
    if isinstance(value, ModuleType) or is_protocol or (inspect.isclass(value) and issubclass(value, Exception)):
        return {}
    return {name: parameter.default for name, parameter in inspect.signature(value).parameters.items()}


def documented(text: str) -> dict[str, str]:
    """The entries of a docstring's list of arguments: name → text."""
    section = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", text, re.S | re.M)
    entries = re.split(r"^    (\w+): ", section[1], flags=re.M)[1:] if section else []
    return dict(zip(entries[::2], entries[1::2], strict=True))


def example(text: str) -> str:
    """The code below the line `Example::`."""
    found = re.search(r"^Example::\n\n((?:^(?:    .*)?(?:\n|\Z))+)", text, re.M)
    return textwrap.dedent(found[1]) if found else ""


@pytest.mark.parametrize("name", NAMES)
def test_the_docstring_names_every_field_in_order_with_its_default(name: str) -> None:
    text = inspect.getdoc(NAMES[name])
    assert text, f"oc.{name} has no docstring"
    defaults, entries = defaults_of(NAMES[name]), documented(text)
    assert list(entries) == list(defaults), f"oc.{name}: the entries under Args: must be its fields, in their order"
    for field, default in defaults.items():
        stated = re.search(r"Default:\s+(.+)", entries[field])
        assert (stated is not None) == (default is not NO_DEFAULT), f"oc.{name}: default of {field}"
        if stated is not None and (default is None or isinstance(default, bool | int | float | str)):
            literal = re.match(r"None|True|False|`\"[^\"]*\"`|[\d.e-]*[\d]", stated[1])
            assert literal is not None, f"oc.{name}: default of {field}"
            assert ast.literal_eval(literal[0].strip("`")) == default, f"oc.{name}: default of {field}"


@pytest.mark.parametrize("name", [name for name, value in NAMES.items() if inspect.isclass(value)])
def test_the_methods_and_properties_of_a_class_have_docstrings(name: str) -> None:
    members = {key: value for key, value in vars(NAMES[name]).items() if not key.startswith("_")}
    kinds = (property, staticmethod, FunctionType)
    assert [key for key, value in members.items() if isinstance(value, kinds) and not inspect.getdoc(value)] == []


def small_cluster(*, quiet: bool) -> oc.Cluster:
    """Stands in for the ranks of a probe, which measure for a long time."""
    assert quiet
    return oc.Cluster.of("cpu", 2, 1 << 34, 2)


OF_A_RUN = ("export", "why", "status", "evaluate", "evaluate_int8", "load", "predict")


def run_example(name: str) -> None:
    code = example(inspect.getdoc(NAMES[name]) or "")
    assert code, f"oc.{name}: its docstring needs an Example:: with code"
    assert "oc." in code, f"oc.{name}: its example must use oc"
    names = {"oc": oc, "torch": torch, "nn": nn, "F": F, "MyModel": MyModel, "MyDataset": MyDataset}
    exec(compile(code, f"example of oc.{name}", "exec"), names)


SLOW = ("tune",)
"""Examples that train many times."""
EXAMPLES = [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in NAMES if name not in OF_A_RUN]


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(inspect.getmodule(NAMES["probe"]), "probe_this_host", small_cluster)
    run_example(name)
    if name == "run":
        for of_a_run in OF_A_RUN:  # of what the example of run has trained
            run_example(of_a_run)
        assert (tmp_path / "model.safetensors").is_file()


def test_fields_and_examples_are_found_in_a_docstring() -> None:
    def complete(x: int, y: int = 1) -> None:
        """Return nothing.

        Args:
            x: One
                line more.
            y: Two. Default: 1.

        Example::

            oc.complete(1)

            oc.complete(2)
        """

    text = inspect.getdoc(complete) or ""
    assert documented(text) == {"x": "One\n        line more.\n", "y": "Two. Default: 1.\n\n"}
    assert example(text) == "oc.complete(1)\n\noc.complete(2)"
    assert example("No code.\n\nExample::\n") == ""
