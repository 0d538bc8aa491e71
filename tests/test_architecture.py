"""The page of the architecture is what its script draws from the imports."""

from __future__ import annotations

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
