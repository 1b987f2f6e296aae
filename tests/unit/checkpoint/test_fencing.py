"""A generation that was followed by another one can no longer change the store."""

import secrets
from collections.abc import Callable
from pathlib import Path

import pytest

from onecurve.checkpoint.fsspec_store import FsspecStore
from onecurve.checkpoint.hashed_json import CorruptedError
from onecurve.checkpoint.local_store import LocalStore
from onecurve.checkpoint.store import Store, name_of

Open = Callable[[], Store]


@pytest.fixture(params=["folder", "object store"])
def open_store(request, tmp_path: Path) -> Open:
    """Opens the same store again, as another process does."""
    url = f"memory://{secrets.token_hex(4)}"
    return lambda: LocalStore(tmp_path / "checkpoints") if request.param == "folder" else FsspecStore(url)


def generation(store: Store) -> str:
    """Begin a generation; return its text."""
    own = secrets.token_hex(4)
    store.enter(own)
    store.fence()
    return own


def stage(store: Store, step: int, own: str) -> str:
    name = name_of(step, f"{own}{step:08x}")
    store.begin(name)
    store.write(name, "rank-0.json", [b"{}"])
    return name


def save(store: Store, step: int, own: str) -> str:
    name = stage(store, step, own)
    store.commit(name, b"root")
    return name


def test_a_late_commit_does_not_count(open_store: Open) -> None:
    late, next_one = open_store(), open_store()
    first = generation(late)
    kept = save(late, 1, first)
    staged = stage(late, 2, first)
    second = generation(next_one)
    with pytest.raises((OSError, CorruptedError)):
        late.commit(staged, b"root")
    assert next_one.names() == [kept]
    newest = save(next_one, 2, second)
    assert open_store().names() == [kept, newest]


def test_a_late_generation_cannot_begin_a_save(open_store: Open) -> None:
    late, next_one = open_store(), open_store()
    first = generation(late)
    generation(next_one)
    with pytest.raises((OSError, CorruptedError)):
        save(late, 1, first)
    assert next_one.names() == []


def test_a_late_generation_cannot_remove_a_checkpoint(open_store: Open) -> None:
    late, next_one = open_store(), open_store()
    kept = save(late, 1, generation(late))
    generation(next_one)
    with pytest.raises((OSError, CorruptedError)):
        late.retire(kept)
    assert next_one.names() == [kept]


def test_what_was_begun_by_an_ended_generation_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    late, next_one = LocalStore(folder), LocalStore(folder)
    stage(late, 1, generation(late))
    own = generation(next_one)
    assert [entry.name for entry in folder.iterdir()] == [f".generation-{own}"]


def test_checkpoints_of_earlier_starts_stay(open_store: Open) -> None:
    names = []
    for step in (1, 2, 3):
        store = open_store()
        names.append(save(store, step, generation(store)))
    assert open_store().names() == names
