"""The worked examples of docs/develop: each change can be made to the code as it is."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [page for page in sorted((ROOT / "docs/develop").glob("*.md")) if "```diff" in page.read_text()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_changes_of_a_page_can_be_made(page: Path, tmp_path: Path) -> None:
    for folder in ("src", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for change in re.findall(r"```diff\n(.*?)```", page.read_text(), flags=re.DOTALL):
        applied = subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=change, capture_output=True, text=True)
        assert applied.returncode == 0, f"{applied.stderr}\n{change}"
        for file in re.findall(r"^\+\+\+ b/(.*\.py)$", change, flags=re.MULTILINE):
            compile((tmp_path / file).read_text(), file, "exec")
