"""Malicious files: their content is never executed, nothing outside their folder is touched, and they are refused
quickly with an OnecurveError."""

import json
import os
import pickle
import random
import resource
import time
from pathlib import Path

import msgspec
import pytest
import tomli_w
import torch

import sample_checkpoints as samples
from onecurve.checkpoint.hashed_json import CorruptedError, digest
from onecurve.checkpoint.local_store import LocalStore
from onecurve.checkpoint.pretrained import load_weights
from onecurve.describe.convert import read_toml, to_plain
from onecurve.describe.errors import OnecurveError
from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Plan

MESH = Mesh(replicate=2, shard=2)
NASTY_VALUES = [
    None, True, -1, 0, 1 << 62, 1 << 80, -(1 << 70), 1.5, float("inf"), 1e308, "", "x" * 5000, "../../up", "/etc/x",
    "a\0b", "9" * 5000, "١٢", [], {}, [[]], [1] * 70, {"a": {"b": 1}}, "nan", "rank-0.json", [-1, 2], [1 << 62],
]  # fmt: skip

NASTY_BYTES = [b"[" * 5000, b'{"a":' * 999, b"9" * 400, b"\0", b"\xff\xfe", b"../", b"null"]


class Canary:
    """Creates a file when it is unpickled."""

    def __init__(self, evidence: Path) -> None:
        self.evidence = evidence

    def __reduce__(self):
        return os.mknod, (str(self.evidence),)


def hashed(body: bytes) -> bytes:
    return b'{"hash":"' + digest(body).encode() + b'","body":' + body + b"}"


def refused(act) -> bool:
    """Return True if `act` raises an OnecurveError; assert that it ends within a second of CPU time."""
    begin = time.process_time()
    try:
        act()
    except OnecurveError:
        return True
    finally:
        assert time.process_time() - begin < 1
    return False


def slots(node, path=()):
    """Yield the path of every node in a tree of dicts and lists."""
    yield path
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield from slots(value, (*path, key))


def put(node, path, value):
    if not path:
        return value
    copy = dict(node) if isinstance(node, dict) else list(node)
    copy[path[0]] = put(copy[path[0]], path[1:], value)
    return copy


@pytest.fixture
def saved(tmp_path):
    """A checkpoint in nested folders, so that a write through `../` is noticed."""
    folder = tmp_path / "a" / "b" / "checkpoints"
    name = samples.save(LocalStore(folder), MESH)
    (tmp_path / "treasure").write_text("untouched")
    yield LocalStore(folder), name, folder / name
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "treasure"]
    assert sorted(path.name for path in (tmp_path / "a" / "b").iterdir()) == ["checkpoints"]
    assert (tmp_path / "treasure").read_text() == "untouched"


def test_a_pickle_in_any_slot_is_not_executed(saved, tmp_path) -> None:
    store, name, folder = saved
    evidence = tmp_path / "evidence"
    pickled = pickle.dumps(Canary(evidence))
    for file in sorted(folder.iterdir()):
        content = file.read_bytes()
        for bad in (pickled, hashed(pickled), pickled + content):
            file.write_bytes(bad)
            assert refused(lambda: samples.load(store, name, Mesh())), file
        if file.suffix == ".json":
            body = json.loads(content)["body"]
            for slot in slots(body):
                file.write_bytes(hashed(json.dumps(put(body, slot, pickled.decode("latin-1"))).encode()))
                refused(lambda: samples.load(store, name, Mesh()))
        file.write_bytes(content)
    plan = to_plain(Plan(MESH, (1, 2, 3, 4), layouts={"*": "rows"}))
    for slot in slots(plan):
        text = tomli_w.dumps(put(plan, slot, pickled.decode("latin-1"))) if slot else pickled.decode("latin-1")
        (folder / "plan.toml").write_text(text)
        refused(lambda: read_toml(Plan, folder / "plan.toml"))
    weights = folder / "weights.safetensors"
    torch.save({"weight": torch.zeros(2)}, weights)
    for bad in (pickled, weights.read_bytes(), len(pickled).to_bytes(8, "little") + pickled):
        weights.write_bytes(bad)
        assert refused(lambda: load_weights(weights, [samples.absent("bias")], {"bias": ["bias"]}))
    assert not evidence.exists()


@pytest.mark.parametrize("file", ["root.json", "rank-0.json", "rank-0.safetensors"])
def test_links_pipes_and_folders_are_not_read(file: str, saved, tmp_path) -> None:
    store, name, folder = saved
    (folder / file).rename(tmp_path / "a" / "b" / "checkpoints" / "moved")
    for make in (
        lambda path: path.symlink_to(tmp_path / "a" / "b" / "checkpoints" / "moved"),
        os.mkfifo,
        Path.mkdir,
        lambda path: path.symlink_to("/dev/zero"),
    ):
        make(folder / file)
        with pytest.raises(CorruptedError):
            samples.load(store, name, Mesh())
        (folder / file).rmdir() if (folder / file).is_dir() else (folder / file).unlink()


def test_a_folder_that_is_a_link_is_not_a_checkpoint(saved) -> None:
    store, name, folder = saved
    folder.rename(folder.parent / "elsewhere")
    folder.symlink_to(folder.parent / "elsewhere")
    assert store.names() == []
    (folder.parent / f".{name}.part").symlink_to(folder.parent / "elsewhere")
    store.clear()
    assert (folder.parent / "elsewhere" / "root.json").exists()


@pytest.mark.parametrize("file", ["../treasure", "/etc/passwd", "a\0b", "", ".", "..", "sub/model.safetensors", "link"])
def test_an_index_may_only_name_files_in_its_folder(file: str, tmp_path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "treasure").write_text("untouched")
    (folder / "link").symlink_to(tmp_path / "treasure")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"bias": file}}))
    with pytest.raises(OnecurveError, match=r"file in the same folder|file outside"):
        load_weights(folder, [samples.absent("bias")], {"bias": ["bias"]})


@pytest.mark.parametrize("count", [1_500, pytest.param(100_000, marks=pytest.mark.slow)])
@pytest.mark.timeout(3600)
def test_mutated_manifests_and_plans_are_refused(count: int, saved) -> None:
    store, name, folder = saved
    rng = random.Random(count)
    files = [folder / file for file in ("root.json", "rank-0.json", "rank-3.json")]
    contents = {file: file.read_bytes() for file in files}
    bodies = {file: json.loads(content)["body"] for file, content in contents.items()}
    body_slots = {file: list(slots(body)) for file, body in bodies.items()}
    plan = to_plain(Plan(MESH, (1, 2, 3, 4), layouts={"*": "rows"}, stages=(1, 2)))
    text = tomli_w.dumps(plan)
    plan_slots = list(slots(plan))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    accepted = 0
    for number in range(count):
        if number % 3 == 0:
            path = folder / "plan.toml"
            changed = (
                _mutated_bytes(rng, text.encode())
                if number % 2
                else _mutated_tree(rng, plan, plan_slots, tomli_w.dumps)
            )
            path.write_bytes(changed)
            accepted += not refused(lambda path=path: read_toml(Plan, path))
            continue
        file = rng.choice(files)
        body = msgspec.json.encode(bodies[file])
        changed = (
            _mutated_bytes(rng, body) if number % 2 else _mutated_tree(rng, bodies[file], body_slots[file], json.dumps)
        )
        file.write_bytes(hashed(changed))
        accepted += not refused(lambda: samples.read(store, name, Mesh()))
        file.write_bytes(contents[file])
    assert accepted < count / 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10


def _mutated_bytes(rng: random.Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(changed))
        match rng.randrange(4):
            case 0:
                changed[at] ^= 1 << rng.randrange(8)
            case 1:
                del changed[at : at + rng.randint(1, 9)]
            case 2:
                changed[at:at] = rng.choice(NASTY_BYTES)
            case 3:
                changed[at:at] = changed[at : at + rng.randint(1, 60)]
    return bytes(changed)


def _mutated_tree(rng: random.Random, tree, slots, dumps) -> bytes:
    slot, value = rng.choice(slots), rng.choice(NASTY_VALUES)
    if dumps is tomli_w.dumps and (value is None or not slot):  # TOML has no null, and its root is a table
        value = {} if not slot else -1
    return dumps(put(tree, slot, value)).encode("utf-8", "surrogatepass")
