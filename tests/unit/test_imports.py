"""Enforces the import table of docs/architecture.md: which package may import which, and which libraries."""

import ast
import re
import sys
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import onecurve

ROOT = Path(onecurve.__file__).parent

CORE = {"describe", "job", "device"}
PLANNER = {*CORE, "model", "formats", "cache", "data", "measure", "apply", "estimate", "search"}
RUNTIME = {*PLANNER, "planner", "train", "checkpoint", "params", "runs"}
MAY_IMPORT = {
    "describe": set(),
    "estimate": {"describe"},
    "search": {"describe", "estimate"},
    "report": {"describe", "estimate", "diagnose"},
    "diagnose": {"describe", "estimate", "search", "runs"},
    "page": {"describe", "diagnose", "report"},
    "job": {"describe", "device"},
    "device": {"describe"},
    "nn": {"describe"},
    "model": CORE,
    "formats": {"describe", "device"},
    "cache": {"describe", "device", "formats", "coordination"},
    "data": {*CORE, "formats", "cache"},
    "train": CORE,
    "params": CORE,
    "servers": {*CORE, "params", "coordination"},
    "measure": {*CORE, "model"},
    "apply": {*CORE, "model"},
    "checkpoint": {"describe", "device"},
    "prove": {"describe", "device"},
    "launch": {"describe", "device", "coordination"},
    "hosts": {"describe", "device", "coordination", "launch"},
    "coordination": {"describe"},
    "health": {"describe", "device", "coordination"},
    "runs": {"describe", "checkpoint"},
    "study": {"describe", "runs"},
    "planner": PLANNER,
    "runtime": RUNTIME,
    "verbs": {
        *RUNTIME,
        "runtime",
        "prove",
        "launch",
        "hosts",
        "report",
        "servers",
        "diagnose",
        "page",
        "study",
        "health",
    },
    "cli": {"verbs", "describe", "report"},
}
LIBRARIES = {
    "describe": {"msgspec", "tomli_w"},
    "estimate": set(),
    "search": set(),
    "diagnose": {"msgspec"},
    "study": {"optuna"},
    "page": set(),
    "report": {"rich", "tensorboard", "mlflow", "wandb"},
    "job": {"torch"},
    "device": {"torch", "numpy"},
    "nn": {"torch"},
    "model": {"torch", "safetensors", "numpy"},
    "formats": {"torch", "numpy", "fsspec", "xxhash", "msgspec", "pyarrow", "zstandard"},
    "cache": {"numpy", "xxhash", "msgspec"},
    "data": {"torch", "numpy", "xxhash", "msgspec"},
    "train": {"torch"},
    "params": {"torch", "numpy", "numba", "msgspec", "xxhash"},
    "servers": {"torch", "msgspec"},
    "measure": {"torch"},
    "apply": {"torch"},
    "checkpoint": {"torch", "numpy", "safetensors", "fsspec", "xxhash", "torchao"},
    "prove": {"torch", "safetensors", "numpy"},
    "launch": {"torch"},
    "hosts": set(),
    "coordination": {"msgspec"},
    "health": {"torch"},
    "runs": set(),
    "planner": {"torch"},
    "runtime": {"torch", "xxhash"},
    "verbs": {"torch", "rich"},
    "cli": {"rich", "shtab"},
}


def imports_of(file: Path) -> set[str]:
    """Every module that a file imports, also inside functions and for type checking."""
    imported = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            modules = {f"{node.module}.{alias.name}" for alias in node.names}
            imported |= {module for module in modules if module_file(module)} or {str(node.module)}
    return imported


def module_file(module: str) -> Path | None:
    """The file of a module of this package, or None if it is none."""
    path = ROOT.parent / Path(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def sources() -> list[tuple[str, Path]]:
    return [(path.parent.name, path) for path in sorted(ROOT.glob("*/*.py"))]


@pytest.mark.parametrize(("package", "file"), sources(), ids=lambda value: str(value).removeprefix(str(ROOT)))
def test_a_package_imports_only_what_the_table_allows(package: str, file: Path) -> None:
    for name in imports_of(file):
        top, *rest = name.split(".")
        if top == "onecurve":
            if rest and rest[0] != package:
                assert rest[0] in MAY_IMPORT[package], f"{package} imports {name}"
        elif top not in sys.stdlib_module_names:
            assert top in LIBRARIES[package], f"{package} imports {name}"


def test_every_package_is_in_the_table() -> None:
    assert {path.parent.name for path in ROOT.glob("*/*.py")} <= MAY_IMPORT.keys()


def test_packages_have_no_subpackages() -> None:
    assert not list(ROOT.glob("*/*/*.py"))


def test_no_import_cycle_between_files_or_packages() -> None:
    files, packages = {}, {}
    for package, file in sources():
        imported = {module_file(name) for name in imports_of(file) if name.startswith("onecurve.")} - {None, file}
        files[file] = imported
        packages.setdefault(package, set()).update(
            other.parent.name for other in imported if other.parent not in (ROOT, file.parent)
        )
    for graph in (files, packages):
        tuple(TopologicalSorter(graph).static_order())  # raises CycleError


def test_no_file_name_occurs_in_more_than_two_packages() -> None:
    names = Counter(path.stem for path in ROOT.glob("*/*.py") if path.stem != "__init__")
    assert [name for name, count in names.items() if count > 2] == []


def test_every_class_name_belongs_to_one_class() -> None:
    classes = Counter(
        node.name
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    )
    repeated = {name for name, count in classes.items() if count > 1}
    assert repeated == set()


def test_dataclasses_with_six_or_more_fields_are_constructed_with_keywords() -> None:
    trees = {path: ast.parse(path.read_text()) for path in ROOT.rglob("*.py")}
    large = {
        node.name
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(each) for each in node.decorator_list)
        if sum(isinstance(field, ast.AnnAssign) and "ClassVar" not in ast.unparse(field) for field in node.body) >= 6
    }
    positional = [
        f"{path}:{node.lineno}"
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in large
        if len(node.args) > 1
    ]
    assert positional == []


def test_the_architecture_document_has_the_same_table() -> None:
    document = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text()
    for package, allowed in MAY_IMPORT.items():
        row = next(line for line in document.splitlines() if line.startswith(f"| `{package}` |"))
        named = set(re.findall(r"`(\w+)`", row.split("|")[3]))
        assert named == allowed, f"docs/architecture.md: row of {package}"
