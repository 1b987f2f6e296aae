"""Holds DESIGN.md's table: who may import whom, and which outside library belongs to which room."""

import ast
import sys
from pathlib import Path

import pytest

import onecurve

ROOT = Path(onecurve.__file__).parent

EVERY_ROOM = {
    "describe", "job", "device", "measure", "predict", "apply", "data", "train", "checkpoint", "prove", "launch",
    "report", "search", "verbs",
}  # fmt: skip
MAY_IMPORT = {
    "describe": set(),
    "predict": {"describe"},
    "search": {"describe", "predict"},
    "job": {"describe"},
    "device": {"describe"},
    "measure": {"describe", "job", "device"},
    "apply": {"describe", "job", "device"},
    "data": {"describe", "job", "device"},
    "train": {"describe", "job", "device"},
    "checkpoint": {"describe", "device"},
    "prove": {"describe", "device"},
    "launch": {"describe", "device"},
    "report": {"describe", "predict"},
    "verbs": EVERY_ROOM,
    "cli": {"verbs", "describe", "report"},
}
LIBRARIES = {
    "describe": {"msgspec", "tomli_w"},
    "predict": set(),
    "search": set(),
    "job": {"torch"},
    "device": {"torch", "numpy"},
    "measure": {"torch"},
    "apply": {"torch"},
    "data": {"torch", "numpy"},
    "train": {"torch"},
    "checkpoint": {"torch", "numpy", "safetensors", "fsspec", "xxhash"},
    "prove": {"torch", "safetensors"},
    "launch": {"torch"},
    "report": {"rich", "tensorboard"},
    "verbs": {"torch", "torchao", "rich", "xxhash"},
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
    assert {path.parent.name for path in ROOT.glob("*/*.py")} <= EVERY_ROOM


def test_rooms_have_no_files_in_deeper_folders() -> None:
    assert not list(ROOT.glob("*/*/*.py"))
