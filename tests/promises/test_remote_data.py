"""Data in an object store: with a cache, the curve of local files, whatever the store does."""

import json
import threading
from pathlib import Path

import pytest

from harness import JOBS, onecurve, steps
from object_store import ObjectStore, object_store

pytest.importorskip("s3fs")
pytest.importorskip("moto")
FILES, LINES = 12, 100


def write(folder: Path, store: ObjectStore) -> None:
    folder.mkdir()
    for number in range(FILES):
        ids = range(number * LINES, (number + 1) * LINES)
        lines = "".join(json.dumps({"id": each, "text": "x" * 2000}) + "\n" for each in ids)
        (folder / f"{number:02}.jsonl").write_text(lines)
        store.put(f"bucket/train/{number:02}.jsonl", lines.encode())


def test_a_store_that_fails_and_stops_changes_nothing(tmp_path: Path) -> None:
    job = [str(JOBS / "remote.py"), "steps=38"]
    with object_store(tmp_path) as store:
        write(tmp_path / "local", store)
        for where in ("local", "s3://bucket/train/"):
            indexed = onecurve("index", where, cwd=tmp_path, **store.environment)
            assert indexed.returncode == 0, indexed.stderr
        assert "s3://bucket/train/_onecurve.index: 1,200 samples of JSON lines in 12 files" in indexed.stdout
        local = ["where=local", "--out", "expected"]
        expected = onecurve("run", *job, *local, "--no-check", cwd=tmp_path)
        assert expected.returncode == 0, expected.stderr
        store.faults.refused = store.faults.cut = 0.05
        store.read.clear()
        threading.Thread(target=store.stop, args=(1_200_000, 3.0), daemon=True).start()  # some files, not all
        remote = ["where=s3://bucket/train/", "cache=cache", "size=1.2M", "seconds=0.05"]
        words = [*remote, "--ranks", "2", "--no-check", "--out", "remote"]
        cached = onecurve("run", *job, *words, cwd=tmp_path, **store.environment)
        assert cached.returncode == 0, cached.stderr
    losses = [[record.loss for record in steps(tmp_path / out)] for out in ("expected", "remote")]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert "files were there when they were needed" in cached.stdout
    total = sum((tmp_path / "local" / f"{number:02}.jsonl").stat().st_size for number in range(FILES))
    read = sum(count for path, count in store.read.items() if path.endswith(".jsonl"))
    assert total <= read < 1.4 * total, "each file once, and what the cache has no room for in the next epoch"
    cache = sum(path.stat().st_size for path in (tmp_path / "cache" / "files").glob("??/*"))
    assert cache <= 1.2 * 2**20
