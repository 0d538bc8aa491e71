"""A package imports only the packages above it in the design's list."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "torchport"

# In import order: a module may import its own package and those before it.
ORDER = [
    *("_version", "results", "errors", "facade", "tensors", "process", "machine", "terminal"),
    *("irtools", "files", "inputs"),
    *("numerics", "opset", "engines", "inspection", "verification", "editing"),
    *("torch_compat", "operators", "capture", "conversion", "comparison", "benchmark", "optimization"),
    *("reports", "bundles", "environment", "cli"),
]
NO_TORCH = set(ORDER[: ORDER.index("torch_compat")])
# Facades give names of every package, imported when they are used. No module imports them.
METADATA_KEYS = "torchport.irtools.metadata"  # keys such as torchport.operators look like modules
FACADES = {"torchport", "torchport.graph", "torchport.operators"}


@functools.cache
def modules() -> dict[str, Path]:
    def name(path: Path) -> str:
        return ".".join(("torchport", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")

    return {name(path): path for path in sorted(SOURCE.rglob("*.py"))}


def package_of(module: str) -> str:
    return module.split(".")[1] if "." in module else module


@functools.cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(modules()[module].read_text())


def imported(module: str) -> Iterator[str]:
    """The modules of torchport that a module imports, at its top or late, or names in a string."""
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("torchport"))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torchport"):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in modules() else str(node.module) for name in names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and module != METADATA_KEYS:
            named = re.findall(r"\btorchport(?:\.\w+)+", node.value)
            yield from (name for name in named if name in modules())


def imports_of_facades(module: str) -> set[str]:
    return FACADES & set(imported(module)) if module not in FACADES else set()


def against_the_order(module: str) -> set[tuple[str, str]]:
    package = package_of(module)
    if module in FACADES:
        return set()
    allowed = set(ORDER[: ORDER.index(package) + 1])
    return {(module, other) for other in imported(module) if package_of(other) not in allowed}


def test_imports_go_one_way() -> None:
    assert {pair for module in modules() for pair in against_the_order(module)} == set()


def test_every_package_is_in_the_list() -> None:
    found = {package_of(module) for module in modules() if module != "torchport"}
    assert found <= {*ORDER, "graph"}


@pytest.mark.parametrize("module", [m for m in modules() if package_of(m) in NO_TORCH])
def test_torch_is_imported_only_below_its_line(module: str) -> None:
    """`run`, `inspect`, `cut`, `edit` and `diff` start without torch."""
    top = [node for node in tree_of(module).body if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {alias.name for node in top for alias in node.names} | {getattr(node, "module", "") or "" for node in top}
    assert not {name for name in names if name == "torch" or name.startswith("torch.")}


def test_torchscript_is_touched_in_its_routes_only() -> None:
    """TorchScript is deprecated: the day it goes, two routes go. Elsewhere it is only recognized, never used."""
    users = {
        module
        for module in modules()
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("torch.jit.script", "torch.jit.trace")
    }
    assert users <= {f"torchport.capture.routes.{name}" for name in ("script", "trace")}
