"""Enforces what docs/threat-model.md says of pickle: which files of the source may load one."""

import ast
from pathlib import Path

import pytest

import onecurve

ROOT = Path(onecurve.__file__).parent

LOADERS = {
    ("pickle", "load"),
    ("pickle", "loads"),
    ("pickle", "Unpickler"),
    ("torch", "load"),
    ("dist", "broadcast_object_list"),
    ("dist", "all_gather_object"),
    ("dist", "gather_object"),
    ("dist", "scatter_object_list"),
    ("dist", "recv_object_list"),
}

MAY_LOAD = {
    "verbs/predict.py": "the outputs of its own processes, in a folder that only the user can read",
    "verbs/inference_worker.py": "the data of the process that has started it, in the same folder",
    "data/lane_states.py": "tensors alone: weights_only=True",
    "model/weight_files.py": "what the user's own code loads, with the user's arguments",
}
MODULES_OF_PICKLES = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}


def pickle_uses(text: str) -> set[str]:
    """Calls and imports in a Python source that may load a pickle."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value).split(".")[-1]
            if (owner, node.attr) in LOADERS or (owner == "distributed" and ("dist", node.attr) in LOADERS):
                found.add(f"{owner}.{node.attr}")
        elif isinstance(node, ast.Import):
            found |= {f"import {name.name}" for name in node.names if name.name in MODULES_OF_PICKLES}
        elif isinstance(node, ast.ImportFrom):
            if node.module in MODULES_OF_PICKLES:
                found.add(f"from {node.module} import")
            if node.module in ("torch", "torch.distributed"):
                loaders = {attribute for owner, attribute in LOADERS if owner in ("torch", "dist")}
                found |= {f"from {node.module} import {name.name}" for name in node.names if name.name in loaders}
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
            found.add("allow_pickle")
    return found


def test_only_the_listed_files_may_load_a_pickle() -> None:
    using = {str(file.relative_to(ROOT)) for file in ROOT.rglob("*.py") if pickle_uses(file.read_text())}
    assert using == MAY_LOAD.keys()


def test_checkpoints_of_loaders_are_read_as_tensors_alone() -> None:
    text = (ROOT / "data/lane_states.py").read_text()
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    loads = [call for call in calls if ast.unparse(call.func) == "torch.load"]
    assert loads
    for call in loads:
        assert {word.arg: ast.unparse(word.value) for word in call.keywords}["weights_only"] == "True"


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from pickle import loads",
        "import torch\ntorch.load('x')",
        "from torch import load",
        "import torch.distributed as dist\ndist.all_gather_object([], 1)",
        "import torch\ntorch.distributed.broadcast_object_list([])",
        "import numpy as np\nnp.load('x', allow_pickle=True)",
    ],
)
def test_uses_are_found(text: str) -> None:
    assert pickle_uses(text)


def test_reading_without_pickle_is_no_use() -> None:
    assert not pickle_uses("import json\njson.loads('1')\nimport numpy as np\nnp.load('x', allow_pickle=False)")
