"""Files from somebody who means harm: nothing of them runs, nothing outside their folder is touched, every refusal is
an OnecurveError and quick."""

import json
import os
import pickle
import random
import resource
import time
from pathlib import Path

import msgspec
import pytest
import samples
import tomli_w
import torch

from onecurve.checkpoint.hashed_json import CorruptedError, digest
from onecurve.checkpoint.local_store import LocalStore
from onecurve.checkpoint.pretrained import load_weights
from onecurve.describe.convert import read_toml, to_plain
from onecurve.describe.errors import OnecurveError
from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Plan

MESH = Mesh(replicate=2, shard=2)
NASTY = [
    None, True, -1, 0, 1 << 62, 1 << 80, -(1 << 70), 1.5, float("inf"), 1e308, "", "x" * 5000, "../../up", "/etc/x",
    "a\0b", "9" * 5000, "١٢", [], {}, [[]], [1] * 70, {"a": {"b": 1}}, "nan", "rank-0.json", [-1, 2], [1 << 62],
]  # fmt: skip

INSERTED = [b"[" * 5000, b'{"a":' * 999, b"9" * 400, b"\0", b"\xff\xfe", b"../", b"null"]


class Canary:
    """Sings when it is unpickled."""

    def __init__(self, song: Path) -> None:
        self.song = song

    def __reduce__(self):
        return os.mknod, (str(self.song),)


def sealed(body: bytes) -> bytes:
    return b'{"hash":"' + digest(body).encode() + b'","body":' + body + b"}"


def refused(act) -> bool:
    """Whether it was, by a typed error, within a second."""
    begin = time.process_time()
    try:
        act()
    except OnecurveError:
        return True
    finally:
        assert time.process_time() - begin < 1
    return False


def slots(node, path=()):
    """Every place in a tree of dicts and lists, keys too."""
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
def place(tmp_path):
    """A checkpoint deep enough that `../` leads to somewhere that is watched."""
    folder = tmp_path / "a" / "b" / "checkpoints"
    name = samples.save(LocalStore(folder), MESH)
    (tmp_path / "treasure").write_text("untouched")
    yield LocalStore(folder), name, folder / name
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "treasure"]
    assert sorted(path.name for path in (tmp_path / "a" / "b").iterdir()) == ["checkpoints"]
    assert (tmp_path / "treasure").read_text() == "untouched"


def test_a_canary_in_every_slot_stays_silent(place, tmp_path) -> None:
    store, name, folder = place
    song = tmp_path / "song"
    egg = pickle.dumps(Canary(song))
    for file in sorted(folder.iterdir()):
        content = file.read_bytes()
        for bad in (egg, sealed(egg), egg + content):
            file.write_bytes(bad)
            assert refused(lambda: samples.load(store, name, Mesh())), file
        if file.suffix == ".json":
            body = json.loads(content)["body"]
            for slot in slots(body):
                file.write_bytes(sealed(json.dumps(put(body, slot, egg.decode("latin-1"))).encode()))
                refused(lambda: samples.load(store, name, Mesh()))
        file.write_bytes(content)
    plan = to_plain(Plan(MESH, (1, 2, 3, 4), layouts={"*": "rows"}))
    for slot in slots(plan):
        text = tomli_w.dumps(put(plan, slot, egg.decode("latin-1"))) if slot else egg.decode("latin-1")
        (folder / "plan.toml").write_text(text)
        refused(lambda: read_toml(Plan, folder / "plan.toml"))
    weights = folder / "weights.safetensors"
    torch.save({"weight": torch.zeros(2)}, weights)
    for bad in (egg, weights.read_bytes(), len(egg).to_bytes(8, "little") + egg):
        weights.write_bytes(bad)
        assert refused(lambda: load_weights(weights, [samples.nothing("bias")], {"bias": "bias"}))
    assert not song.exists()


@pytest.mark.parametrize("file", ["root.json", "rank-0.json", "rank-0.safetensors"])
def test_links_pipes_and_folders_are_not_read(file: str, place, tmp_path) -> None:
    store, name, folder = place
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


def test_a_folder_that_is_a_link_is_no_checkpoint(place) -> None:
    store, name, folder = place
    folder.rename(folder.parent / "elsewhere")
    folder.symlink_to(folder.parent / "elsewhere")
    assert store.names() == []
    (folder.parent / f".{name}.part").symlink_to(folder.parent / "elsewhere")
    store.clear()
    assert (folder.parent / "elsewhere" / "root.json").exists()


@pytest.mark.parametrize(
    "named", ["../treasure", "/etc/passwd", "a\0b", "", ".", "..", "sub/model.safetensors", "link"]
)
def test_an_index_names_files_beside_it_only(named: str, tmp_path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "treasure").write_text("untouched")
    (folder / "link").symlink_to(tmp_path / "treasure")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"bias": named}}))
    with pytest.raises(OnecurveError, match=r"not a file beside it|leads out of"):
        load_weights(folder, [samples.nothing("bias")], {"bias": "bias"})


@pytest.mark.parametrize("count", [1_500, pytest.param(100_000, marks=pytest.mark.slow)])
@pytest.mark.timeout(3600)
def test_mutated_manifests_and_plans(count: int, place) -> None:
    store, name, folder = place
    draw = random.Random(count)
    files = [folder / file for file in ("root.json", "rank-0.json", "rank-3.json")]
    contents = {file: file.read_bytes() for file in files}
    bodies = {file: json.loads(content)["body"] for file, content in contents.items()}
    places = {file: list(slots(body)) for file, body in bodies.items()}
    plan = to_plain(Plan(MESH, (1, 2, 3, 4), layouts={"*": "rows"}, stages=(1, 2)))
    text = tomli_w.dumps(plan)
    plan_slots = list(slots(plan))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    taken = 0
    for number in range(count):
        if number % 3 == 0:
            path = folder / "plan.toml"
            changed = _bytes(draw, text.encode()) if number % 2 else _tree(draw, plan, plan_slots, tomli_w.dumps)
            path.write_bytes(changed)
            taken += not refused(lambda path=path: read_toml(Plan, path))
            continue
        file = draw.choice(files)
        body = msgspec.json.encode(bodies[file])
        changed = _bytes(draw, body) if number % 2 else _tree(draw, bodies[file], places[file], json.dumps)
        file.write_bytes(sealed(changed))
        taken += not refused(lambda: samples.read(store, name, Mesh()))
        file.write_bytes(contents[file])
    assert taken < count / 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10


def _bytes(draw: random.Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(changed))
        match draw.randrange(4):
            case 0:
                changed[at] ^= 1 << draw.randrange(8)
            case 1:
                del changed[at : at + draw.randint(1, 9)]
            case 2:
                changed[at:at] = draw.choice(INSERTED)
            case 3:
                changed[at:at] = changed[at : at + draw.randint(1, 60)]
    return bytes(changed)


def _tree(draw: random.Random, tree, places, dumps) -> bytes:
    slot, value = draw.choice(places), draw.choice(NASTY)
    if dumps is tomli_w.dumps and (value is None or not slot):  # TOML has no null, and is a table
        value = {} if not slot else -1
    return dumps(put(tree, slot, value)).encode("utf-8", "surrogatepass")
