"""Pooling: ``ceil_mode`` and ``dilations`` came piece by piece, and what a window past the edge means was settled late."""

from __future__ import annotations

import onnx_ir as ir

from torchport.graph.opset_rules import reading
from torchport.graph.opset_rules.builder import Builder, Rules
from torchport.graph.opset_rules.reading import Refusal

_POOLS = ("AveragePool", "MaxPool", "LpPool")


def windows_start_inside(node: ir.Node, b: Builder) -> None:
    """Since 22 a window that would start in the right padding is left out.

    With ``ceil_mode`` the last window starts at most at size + begin + end - kernel + stride - 1; it is inside when
    end + stride <= kernel, whatever the size.
    """
    if not reading.integer(node, "ceil_mode", 0) or reading.text(node, "auto_pad", "NOTSET") == "VALID":
        return
    kernel = reading.integers(node, "kernel_shape") or []
    count = len(kernel)
    strides = reading.integers(node, "strides") or [1] * count
    dilations = reading.integers(node, "dilations") or [1] * count
    ends = (reading.integers(node, "pads") or [0] * 2 * count)[count:]
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    if any(end + stride > k for end, stride, k in zip(ends, strides, reach, strict=True)):
        raise Refusal("ceil_mode may put a window into the right padding, which opset 22 settled")


def settled_average(node: ir.Node, b: Builder) -> None:
    """Dilation came in 19, and with it the count of what a window past the edge is divided by."""
    no_dilation(node, b)
    if reading.integer(node, "ceil_mode", 0) and reading.integer(node, "count_include_pad", 0):
        raise Refusal("ceil_mode with count_include_pad was settled in opset 19")


def no_dilation(node: ir.Node, b: Builder) -> None:
    if any(d != 1 for d in reading.integers(node, "dilations") or []):
        raise Refusal("its dilations came in a later opset")
    node.attributes.pop("dilations", None)


def floor_only(node: ir.Node, b: Builder) -> None:
    no_dilation(node, b)
    if reading.integer(node, "ceil_mode", 0):
        raise Refusal("ceil_mode=1 came in a later opset")
    node.attributes.pop("ceil_mode", None)


DOWN: Rules = {
    ("AveragePool", 22): windows_start_inside,
    ("MaxPool", 22): windows_start_inside,
    ("AveragePool", 19): settled_average,
    ("LpPool", 18): floor_only,
    ("AveragePool", 10): floor_only,
    ("MaxPool", 10): floor_only,
}
UP: Rules = {
    ("AveragePool", 22): windows_start_inside,
    ("MaxPool", 22): windows_start_inside,
    ("AveragePool", 19): settled_average,
}
