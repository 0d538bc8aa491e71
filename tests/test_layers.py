"""Rooms import what stands left of them in the flow, never right."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "torchport"

# In the order of the data flow. A room may import itself and any room before it.
BASE = ["_version", "errors", "records", "tensors", "silence", "memory"]
ROOMS = ["operators", "capture", "proving", "graph", "engines", "comparing"]
JOINTS = ["metadata", "health", "pipeline", "cli", "__init__"]  # these may import every room


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def room_of(path: Path) -> str:
    first = path.relative_to(SOURCE).parts[0]
    return first.removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        found |= {name.split(".")[1] for name in names if name.startswith("torchport.")}
    return found & {*BASE, *ROOMS, *JOINTS}


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_one_way(path: Path) -> None:
    room = room_of(path)
    if room in JOINTS:
        return
    allowed = set(BASE) if room in BASE else {*BASE, *ROOMS[: ROOMS.index(room) + 1]}
    assert imported_rooms(path) <= allowed


def test_every_room_is_in_the_list() -> None:
    assert {room_of(p) for p in modules()} == {*BASE, *ROOMS, *JOINTS}


def test_torchscript_is_touched_in_its_routes_only() -> None:
    """TorchScript is deprecated: the day it goes, two routes go. Elsewhere it is only recognized, never used."""
    users = {
        str(p.relative_to(SOURCE))
        for p in modules()
        for node in ast.walk(ast.parse(p.read_text()))
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("torch.jit.script", "torch.jit.trace")
    }
    assert users <= {f"capture/routes/{name}.py" for name in ("script", "script_numbers", "trace")}
