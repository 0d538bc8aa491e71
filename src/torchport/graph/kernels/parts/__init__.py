"""Operators written out in simpler ones, for engines that have those only. One file an operator."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from torchport.graph.kernels.parts import convolution, erf, instance_normalization, pooling, resizing
from torchport.irtools import function_bodies
from torchport.irtools.builder import Steps

_WRITTEN: dict[str, Callable[[Steps, ir.Node], ir.Value | None]] = {
    "Conv": convolution.conv,
    "ConvTranspose": convolution.conv_transpose,
    "Erf": erf.erf,
    "GlobalAveragePool": pooling.global_average,
    "GlobalMaxPool": pooling.global_max,
    "AveragePool": pooling.average,
    "InstanceNormalization": instance_normalization.instance_normalization,
    "Resize": resizing.resize,
}


def of(node: ir.Node, model: ir.Model) -> list[ir.Node] | None:
    """Put the node's parts in its place and give them; None if it has none, and nothing is changed."""
    if node.op_type in _WRITTEN and node.domain == "":
        steps = Steps(node)
        result = _WRITTEN[node.op_type](steps, node)
        return None if result is None else steps.replace(result)
    return function_bodies.inline(node, model)
