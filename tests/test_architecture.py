"""The page of the architecture is what its script draws from the imports."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def test_the_architecture_page_is_true() -> None:
    script = runpy.run_path(str(DOCS / "draw_architecture.py"))
    assert (DOCS / "architecture.md").read_text() == script["document"](), "run python docs/draw_architecture.py"


def test_the_script_lists_the_packages_in_the_order_of_the_layer_test() -> None:
    from test_layers import ORDER

    script = runpy.run_path(str(DOCS / "draw_architecture.py"))
    assert list(script["PACKAGES"]) == [name for name in ORDER if name != "_version"]


def test_every_source_file_that_the_pages_name_exists() -> None:
    """Only names with a package in front are checked: `model.py` alone is a user's file."""
    root = DOCS.parent
    packages = "|".join(p.name for p in (root / "src" / "torchport").iterdir() if p.is_dir())
    named = re.compile(rf"(?<![\w/])(?:src/torchport/)?((?:{packages})/[\w/]+\.py)")
    pages = [*DOCS.glob("*.md"), root / "README.md", root / "CONTRIBUTING.md", root / "SECURITY.md"]
    found = {(page.name, path) for page in pages for path in named.findall(page.read_text())}
    assert len(found) > 10
    assert not {(page, path) for page, path in found if not (root / "src" / "torchport" / path).exists()}
