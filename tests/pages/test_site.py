"""The documentation builds without a warning, has every public name once, and no dead link."""

import os
import re
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

import onecurve as oc

ROOT = Path(__file__).parents[2]
_NAMES = re.compile(r"<!-- names: (.*?) -->", re.DOTALL)


def test_every_public_name_is_in_the_reference() -> None:
    text = " ".join(
        found
        for path in (ROOT / "docs" / "reference").glob("*.md")
        for found in _NAMES.findall(path.read_text("utf-8"))
    )
    listed = Counter(re.sub(r"\(.*?\)", "", text).split())
    expected = {name for name in oc.__all__ if name not in ("data", "loss", "metric", "nn", "params")}
    for module in ("data", "nn", "params"):
        expected |= {f"{module}.{name}" for name in getattr(oc, module).__all__}
    assert expected <= listed.keys()
    assert max(listed.values()) == 1


@pytest.mark.parametrize("page", sorted(ROOT.glob("*.md")), ids=lambda path: path.name)
def test_links_of_the_repositorys_pages_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text("utf-8")):
        assert target.startswith("https://") or (ROOT / target).exists(), target


class Links(HTMLParser):
    """The targets of links and images of a page, and its own anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            if value and ((tag, name) in (("a", "href"), ("img", "src"), ("script", "src"), ("link", "href"))):
                self.targets.add(value)


@pytest.mark.timeout(400)
def test_the_site_builds_without_a_warning_and_has_no_dead_link(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=380, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    pages = {path: Links(path.read_text("utf-8")) for path in (tmp_path / "site").rglob("*.html")}
    assert len(pages) > 60
    for path, page in pages.items():
        for target in page.targets:
            if target.startswith(("mailto:", "data:", "javascript:")) or path.name == "404.html":
                continue
            if target.startswith(("http://", "https://")):
                assert not target.endswith((".js", ".css", ".woff2")), f"{path.name} loads {target}"
                continue
            where, _, anchor = target.partition("#")
            file = (path.parent / where).resolve() if where else path
            assert file.exists(), f"{path.name}: {target}"
            if anchor and file in pages:
                assert anchor in pages[file].anchors, f"{path.name}: {target}"
