"""Marks on nodes that mean something in this process only."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import onnx_ir as ir

from torchport.results import MARK


@contextlib.contextmanager
def unmarked(model: ir.Model) -> Iterator[None]:
    """The model without marks, for saving."""
    marked = [n for n in ir.traversal.RecursiveGraphIterator(model.graph) if MARK in n.metadata_props]
    taken = [n.metadata_props.pop(MARK) for n in marked]
    try:
        yield
    finally:
        for node, mark in zip(marked, taken, strict=True):
            node.metadata_props[MARK] = mark
