"""All rules, by operator and border. A new file of rules is added to `_FILES`, nothing else."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from types import MappingProxyType

import onnx_ir as ir

from torchport.irtools.builder import Builder

Rule = Callable[[ir.Node, Builder], Sequence[ir.Value | None] | None]
"""Carries one node across one opset boundary.

It returns what stands for the node's outputs; or None when the node (perhaps with attributes taken off) means the
same on both sides and only its form is left to be checked. It raises `Refusal` with the reason otherwise.
"""
Rules = dict[tuple[str, int], Rule]
"""Rules by operator and by the opset whose border they cross: ``("Pad", 18)`` crosses between 17 and 18."""

_FILES = ("arithmetic", "constants", "indexing", "layers", "normalization", "reductions", "resize", "shapes")


def _joined(side: str) -> MappingProxyType[tuple[str, int], Rule]:
    joined: Rules = {}
    for file in _FILES:
        rules: Rules = getattr(importlib.import_module(f"{__package__}.{file}"), side)
        twice = joined.keys() & rules.keys()
        if twice:
            raise RuntimeError(f"two rules for {sorted(twice)}")
        joined.update(rules)
    return MappingProxyType(joined)


DOWN = _joined("DOWN")
UP = _joined("UP")
