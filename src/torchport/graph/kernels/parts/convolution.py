"""Conv as one product of matrices for each place of the kernel.

    y = Σ over places k of the kernel:  W[..., k] · x[..., k·dilation + stride·(0, 1, 2, ...)]

The picture shifted by k is a slice with a stride, its length found by counting from the end: it starts at k·d and ends
(K - 1 - k)·d before the end of the padded picture. Groups are an axis of their own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import onnx_ir as ir

from torchport.graph.kernels.parts.steps import Steps

END = (1 << 63) - 1
_MOST_PLACES = 200  # of a kernel; beyond, the graph would be larger than it is worth


def conv(op: Steps, node: ir.Node) -> ir.Value | None:
    x, weight = node.inputs[:2]
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if x is None or weight is None or weight.shape is None or not weight.shape.is_static():
        return None
    outputs, inputs, *kernel = weight.shape.numpy()
    rank = len(kernel)
    attributes = node.attributes
    if math.prod(kernel) > _MOST_PLACES or attributes.get_string("auto_pad", "NOTSET") != "NOTSET":
        return None
    strides = attributes.get_ints("strides", [1] * rank)
    dilations = attributes.get_ints("dilations", [1] * rank)
    pads = attributes.get_ints("pads", [0] * 2 * rank)
    groups = attributes.get_int("group", 1)
    if any(pads):
        x = op.Pad(x, [0, 0, *pads[:rank], 0, 0, *pads[rank:]])
    # batch, group, channel, then the picture; the products are over channels
    apart = op.Reshape(weight, [groups, outputs // groups, inputs, math.prod(kernel)])
    total = None
    for number, place in enumerate(itertools.product(*map(range, kernel))):
        part = op.Reshape(_shifted(op, x, place, kernel, strides, dilations), [0, groups, inputs, -1])
        own = op.Squeeze(op.Slice(apart, [number], [number + 1], [3]), [3])
        product = op.MatMul(own, part)  # of each group: outputs by channels, channels by places
        total = product if total is None else op.Add(total, product)
    shape = op.Concat(*_output_shape(op, x, outputs, kernel, strides, dilations), axis=0)
    answer: ir.Value = op.Reshape(total, shape)
    if bias is not None:
        answer = op.Add(answer, op.Reshape(bias, [1, outputs, *[1] * rank]))
    return answer


def _shifted(
    op: Steps,
    x: ir.Value,
    place: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> ir.Value:
    starts = [k * d for k, d in zip(place, dilations, strict=True)]
    left = [(size - 1 - k) * d for size, k, d in zip(kernel, place, dilations, strict=True)]
    ends = [-n if n else END for n in left]
    answer: ir.Value = op.Slice(x, starts, ends, [2 + a for a in range(len(kernel))], list(strides))
    return answer


def _output_shape(
    op: Steps, x: ir.Value, outputs: int, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> list[ir.Value | None]:
    """Batch, channels, and for each side floor((size - (K - 1)·d - 1) / stride) + 1."""
    sides: list[ir.Value | None] = []
    for axis, (size, stride, dilation) in enumerate(zip(kernel, strides, dilations, strict=True)):
        given = op.Shape(x, start=2 + axis, end=3 + axis)
        sides.append(op.Add(op.Div(op.Sub(given, [(size - 1) * dilation + 1]), [stride]), [1]))
    return [op.Shape(x, start=0, end=1), op.value([outputs]), *sides]
