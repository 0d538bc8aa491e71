"""InstanceNormalization: (x - mean) / √(variance + ε) · scale + bias, mean and variance of each picture."""

from __future__ import annotations

import onnx_ir as ir

from torchport.irtools.builder import Steps


def instance_normalization(op: Steps, node: ir.Node) -> ir.Value | None:
    x, scale, bias = node.inputs
    if x is None or x.shape is None:
        return None
    rank = len(x.shape)
    axes = list(range(2, rank))
    centered = op.Sub(x, op.ReduceMean(x, axes, keepdims=1))
    variance = op.ReduceMean(op.Mul(centered, centered), axes, keepdims=1)
    normal = op.Div(centered, op.Sqrt(op.Add(variance, node.attributes.get_float("epsilon", 1e-5))))
    spread = [1, -1, *[1] * (rank - 2)]
    answer: ir.Value = op.Add(op.Mul(normal, op.Reshape(scale, spread)), op.Reshape(bias, spread))
    return answer
