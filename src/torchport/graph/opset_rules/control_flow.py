"""If and Scan: branches of different shapes came in 11; Scan was batched before 9 and counted axes from the front."""

from __future__ import annotations

import onnx_ir as ir

from torchport.irtools import node_reader
from torchport.irtools.builder import Builder, Rules
from torchport.irtools.node_reader import Refusal


def branches_of_one_shape(node: ir.Node, b: Builder) -> None:
    then, other = (attr.as_graph() for attr in (node.attributes["then_branch"], node.attributes["else_branch"]))
    if not all(node_reader.same_shape(x, y) for x, y in zip(then.outputs, other.outputs, strict=True)):
        raise Refusal("branches not known to have one shape came in opset 11")


def scan_axes_from_front(node: ir.Node, b: Builder) -> None:
    axes = [a for name in ("scan_input_axes", "scan_output_axes") for a in node_reader.integers(node, name) or []]
    if any(axis < 0 for axis in axes):
        raise Refusal("axes counted from the back came in opset 11")


def unbatched(node: ir.Node, b: Builder) -> None:
    raise Refusal("it ran over batches before opset 9")


DOWN: Rules = {("If", 11): branches_of_one_shape, ("Scan", 11): scan_axes_from_front, ("Scan", 9): unbatched}
UP: Rules = {("Scan", 9): unbatched}
