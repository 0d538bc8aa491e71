"""Pooling as reductions; AveragePool as a convolution with equal weights, divided by how many numbers were seen."""

from __future__ import annotations

import itertools
import math

import onnx_ir as ir

from torchport.graph.kernels.parts.convolution import END
from torchport.irtools.builder import Steps


def global_average(op: Steps, node: ir.Node) -> ir.Value | None:
    x = node.inputs[0]
    if x is None or x.shape is None:
        return None
    answer: ir.Value = op.ReduceMean(x, list(range(2, len(x.shape))), keepdims=1)
    return answer


def global_max(op: Steps, node: ir.Node) -> ir.Value | None:
    x = node.inputs[0]
    if x is None or x.shape is None:
        return None
    answer: ir.Value = op.ReduceMax(x, list(range(2, len(x.shape))), keepdims=1)
    return answer


def average(op: Steps, node: ir.Node) -> ir.Value | None:
    """Only where no padding is left out of the count: then all windows are of one size."""
    x, attributes = node.inputs[0], node.attributes
    kernel = list(attributes.get_ints("kernel_shape", []))
    rank = len(kernel)
    pads = list(attributes.get_ints("pads", [0] * 2 * rank))
    padded = any(pads) and not attributes.get_int("count_include_pad", 0)
    others = attributes.get_int("ceil_mode", 0) or attributes.get_string("auto_pad", "NOTSET") != "NOTSET"
    if x is None or padded or others:
        return None
    strides = list(attributes.get_ints("strides", [1] * rank))
    dilations = list(attributes.get_ints("dilations", [1] * rank))
    if any(pads):
        x = op.Pad(x, [0, 0, *pads[:rank], 0, 0, *pads[rank:]])
    total = None
    for place in itertools.product(*map(range, kernel)):
        starts = [k * d for k, d in zip(place, dilations, strict=True)]
        left = [(size - 1 - k) * d for size, k, d in zip(kernel, place, dilations, strict=True)]
        part = op.Slice(x, starts, [-n if n else END for n in left], [2 + a for a in range(rank)], strides)
        total = part if total is None else op.Add(total, part)
    answer: ir.Value = op.Div(total, float(math.prod(kernel)))
    return answer
