"""A run in an object store is read like one in a folder."""

from pathlib import Path

import fsspec
import pytest

import onecurve as oc
from synthetic_run import write_run


def test_status_and_why_of_a_run_at_a_url(tmp_path: Path) -> None:
    write_run(tmp_path / "run", ranks=2, steps=40)
    url = f"memory://{tmp_path.name}/run"
    fsspec.filesystem("memory").put(f"{tmp_path / 'run'}/", f"/{tmp_path.name}/run/", recursive=True)
    here, there = oc.status(tmp_path / "run"), oc.status(url)
    assert (there.folder, there.step, there.loss) == (url, here.step, here.loss)
    diagnosis = oc.why(url, html=tmp_path / "page.html")
    assert (diagnosis.folder, diagnosis.steps) == (url, here.step)
    assert "<h1>run</h1>" in (tmp_path / "page.html").read_text()
    with pytest.raises(oc.OnecurveError, match="a trial continues from a checkpoint on this host"):
        oc.why(url, try_changes=True)


def test_a_url_without_records_is_no_run() -> None:
    with pytest.raises(oc.OnecurveError, match=r"memory://nothing: no run's folder \(it has no records\)"):
        oc.status("memory://nothing")
