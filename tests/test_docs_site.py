"""The site is built as `make docs` does it: a warning of mkdocs is an error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.xdist_group("site")  # one worker, so that it is built once


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(target)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return target


def test_every_page_is_built(site: Path) -> None:
    pages = {page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")}
    built = {
        site / (page.parent if page.name == "index.md" else page.with_suffix("")) for page in pages
    }
    assert [folder for folder in built if not (folder / "index.html").is_file()] == []


def test_a_formula_is_mathml_and_not_dollars(site: Path) -> None:
    page = (site / "methods" / "creff" / "index.html").read_text(encoding="utf-8")
    assert "<math" in page
    assert "$$" not in page


def test_the_reference_has_the_fields_of_a_method_and_their_meaning(site: Path) -> None:
    page = (site / "reference" / "api" / "index.html").read_text(encoding="utf-8")
    creff = page.split('id="fedtail.CReFF"', 1)[1].split('id="fedtail.GBME"', 1)[0]
    assert "<code>match_steps</code>" in creff
    assert "steps of gradient matching in a round" in creff


def test_no_page_asks_another_host(site: Path) -> None:
    asking = ('src="http', 'rel="stylesheet" href="http', "@import url(http")
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert [word for word in asking if word in text] == [], page
