"""Holds DESIGN.md's table: who may import whom, and which outside library belongs to which room."""

import ast
import sys
from pathlib import Path

import pytest

import onecurve

ROOT = Path(onecurve.__file__).parent

CORE = {"describe", "job", "device"}
PLANNER = {*CORE, "model", "data", "measure", "apply", "predict", "search"}
RUNTIME = {*PLANNER, "planner", "train", "checkpoint", "params", "runs"}
MAY_IMPORT = {
    "describe": set(),
    "predict": {"describe"},
    "search": {"describe", "predict"},
    "report": {"describe", "predict"},
    "job": {"describe"},
    "device": {"describe"},
    "model": CORE,
    "data": CORE,
    "train": CORE,
    "measure": {*CORE, "model"},
    "apply": {*CORE, "model"},
    "checkpoint": {"describe", "device"},
    "prove": {"describe", "device"},
    "launch": {"describe", "device"},
    "runs": {"describe", "checkpoint"},
    "planner": PLANNER,
    "runtime": RUNTIME,
    "verbs": {*RUNTIME, "runtime", "prove", "launch", "report"},
    "cli": {"verbs", "describe", "report"},
}
LIBRARIES = {
    "describe": {"msgspec", "tomli_w"},
    "predict": set(),
    "search": set(),
    "report": {"rich", "tensorboard"},
    "job": {"torch"},
    "device": {"torch", "numpy"},
    "model": {"torch"},
    "data": {"torch", "numpy"},
    "train": {"torch"},
    "measure": {"torch"},
    "apply": {"torch"},
    "checkpoint": {"torch", "numpy", "safetensors", "fsspec", "xxhash", "torchao"},
    "prove": {"torch", "safetensors"},
    "launch": {"torch"},
    "runs": set(),
    "planner": {"torch"},
    "runtime": {"torch", "xxhash"},
    "verbs": {"torch", "rich"},
    "cli": {"rich"},
}


def imports_of(file: Path) -> set[str]:
    tree = ast.parse(file.read_text())
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            found.add(str(node.module))
    return found


def sources() -> list[tuple[str, Path]]:
    rooms = [(path.parent.name, path) for path in sorted(ROOT.glob("*/*.py"))]
    return [*rooms, ("cli", ROOT / "cli.py")]


@pytest.mark.parametrize(("room", "file"), sources(), ids=lambda value: str(value).removeprefix(str(ROOT)))
def test_a_room_imports_only_what_the_table_allows(room: str, file: Path) -> None:
    for name in imports_of(file):
        top, *rest = name.split(".")
        if top == "onecurve":
            if rest and rest[0] != room:
                assert rest[0] in MAY_IMPORT[room], f"{room} imports {name}"
        elif top not in sys.stdlib_module_names:
            assert top in LIBRARIES[room], f"{room} imports {name}"


def test_every_room_is_in_the_table() -> None:
    assert {path.parent.name for path in ROOT.glob("*/*.py")} <= MAY_IMPORT.keys()


def test_rooms_have_no_files_in_deeper_folders() -> None:
    assert not list(ROOT.glob("*/*/*.py"))
