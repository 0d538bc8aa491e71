"""Rules for pooling, ConvTranspose, Gemm and recurrent layers."""

from __future__ import annotations

import onnx_ir as ir

from torchport.irtools import node_reader
from torchport.irtools.builder import Builder
from torchport.irtools.node_reader import Refusal
from torchport.opset.rules import Rules

# Pooling: ``ceil_mode`` and ``dilations`` came piece by piece, and windows past the edge were settled late.


def windows_start_inside(node: ir.Node, b: Builder) -> None:
    """Since 22 a window that would start in the right padding is left out.

    With ``ceil_mode`` the last window starts at most at size + begin + end - kernel + stride - 1; it is inside when
    end + stride <= kernel, whatever the size.
    """
    if not node_reader.integer(node, "ceil_mode", 0) or node_reader.text(node, "auto_pad", "NOTSET") == "VALID":
        return
    kernel = node_reader.integers(node, "kernel_shape") or []
    count = len(kernel)
    strides = node_reader.integers(node, "strides") or [1] * count
    dilations = node_reader.integers(node, "dilations") or [1] * count
    ends = (node_reader.integers(node, "pads") or [0] * 2 * count)[count:]
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    if any(end + stride > k for end, stride, k in zip(ends, strides, reach, strict=True)):
        raise Refusal("ceil_mode may put a window into the right padding, which opset 22 settled")


def settled_average(node: ir.Node, b: Builder) -> None:
    """Dilation came in 19, and with it the count of what a window past the edge is divided by."""
    no_dilation(node, b)
    if node_reader.integer(node, "ceil_mode", 0) and node_reader.integer(node, "count_include_pad", 0):
        raise Refusal("ceil_mode with count_include_pad was settled in opset 19")


def no_dilation(node: ir.Node, b: Builder) -> None:
    if any(d != 1 for d in node_reader.integers(node, "dilations") or []):
        raise Refusal("its dilations came in a later opset")
    node.attributes.pop("dilations", None)


def floor_only(node: ir.Node, b: Builder) -> None:
    """Where all sizes are known, rounding up is the same as padding the end until it divides.

    With n = ceil((size + begin + end - kernel) / stride) the end grows to n·stride + kernel - size - begin.
    What is padded counts for nothing, in a maximum or in an average that leaves padding out.
    """
    no_dilation(node, b)
    if node_reader.integer(node, "ceil_mode", 0):
        _pad_instead(node)
    node.attributes.pop("ceil_mode", None)


def _pad_instead(node: ir.Node) -> None:
    kernel, dims = node_reader.integers(node, "kernel_shape") or [], node_reader.required(node, 0).shape
    explicit = node_reader.text(node, "auto_pad", "NOTSET") == "NOTSET"
    sizes = [d for d in dims[2:] if isinstance(d, int)] if dims is not None else []
    counts = node.op_type == "LpPool" or node_reader.integer(node, "count_include_pad", 0)
    if not explicit or counts or len(sizes) != len(kernel):
        raise Refusal("ceil_mode=1 came in a later opset, and the sizes of its input are not known")
    count = len(kernel)
    strides = node_reader.integers(node, "strides") or [1] * count
    pads = node_reader.integers(node, "pads") or [0] * 2 * count
    for i, (size, k, stride) in enumerate(zip(sizes, kernel, strides, strict=True)):
        steps = -(-(size + pads[i] + pads[count + i] - k) // stride)
        pads[count + i] = max(pads[count + i], steps * stride + k - size - pads[i])
        if pads[count + i] >= k:
            raise Refusal("ceil_mode=1 came in a later opset, and padding instead is wider than its kernel")
    node.attributes["pads"] = ir.AttrInt64s("pads", pads)


# ConvTranspose: what ``auto_pad`` and ``output_shape`` mean was written anew in 11; explicit pads mean the same.


def explicit_pads(node: ir.Node, b: Builder) -> None:
    if node_reader.text(node, "auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise Refusal("the meaning of auto_pad changed in opset 11")
    if node_reader.attribute(node, "output_shape") is not None:
        raise Refusal("the meaning of output_shape changed in opset 11")


# Gemm: the third input became optional in 11; a zero that broadcasts adds nothing.

_GIVEN = ("alpha", "beta", "transA", "transB")


def add_zero(node: ir.Node, b: Builder) -> list[ir.Value] | None:
    if node_reader.input_at(node, 2) is not None:
        return None
    x, y = node_reader.required(node, 0), node_reader.required(node, 1)
    zero = b.constant([0], node_reader.dtype(x).numpy())
    return [b.op("Gemm", x, y, zero, **{name: node_reader.attribute(node, name) for name in _GIVEN})]


# LSTM, GRU and RNN: the batch-first ``layout`` came in 14; before, inputs and outputs are transposed.

_STATES = (5, 6)  # initial_h, and initial_c of the LSTM


def sequence_first(node: ir.Node, b: Builder) -> list[ir.Value | None] | None:
    """X and the states swap batch with their first axis; Y goes from (S, D, B, H) to (B, S, D, H)."""
    if not node_reader.integer(node, "layout", 0):
        node.attributes.pop("layout", None)
        return None
    inputs = list(node.inputs)
    for index in (0, *_STATES):
        value = node_reader.input_at(node, index)
        if value is not None:
            inputs[index] = b.op("Transpose", value, perm=[1, 0, 2])
    given = {n: a.value for n, a in node.attributes.items() if n != "layout" and not a.is_ref()}
    outputs = list(b.ops(node.op_type, inputs, len(node.outputs), **given))
    orders = [[2, 0, 1, 3], [1, 0, 2], [1, 0, 2]]
    return [b.op("Transpose", y, perm=order) for y, order in zip(outputs, orders, strict=False)]


DOWN: Rules = {
    ("AveragePool", 22): windows_start_inside,
    ("MaxPool", 22): windows_start_inside,
    ("AveragePool", 19): settled_average,
    ("LpPool", 18): floor_only,
    ("AveragePool", 10): floor_only,
    ("MaxPool", 10): floor_only,
    ("ConvTranspose", 11): explicit_pads,
    ("Gemm", 11): add_zero,
    **{(op, 14): sequence_first for op in ("LSTM", "GRU", "RNN")},
}
UP: Rules = {
    ("AveragePool", 22): windows_start_inside,
    ("MaxPool", 22): windows_start_inside,
    ("AveragePool", 19): settled_average,
    ("ConvTranspose", 11): explicit_pads,
}
