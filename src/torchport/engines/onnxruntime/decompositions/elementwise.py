"""Erf and InstanceNormalization in simpler operators, and the table of all decompositions."""

from __future__ import annotations

import math
from collections.abc import Callable

import onnx_ir as ir

from torchport.engines.onnxruntime.decompositions import spatial
from torchport.engines.onnxruntime.decompositions.spatial import average, global_average, global_max
from torchport.irtools import function_bodies
from torchport.irtools.builder import Steps

# Erf, to the last digits of float64.
#
#     |x| ≤ 0.46875   erf(x) = x · a(x²) / b(x²)
#     |x| ≤ 4         erfc(|x|) = exp(-x²) · c(|x|) / d(|x|)
#     beyond          erfc(|x|) = exp(-x²) / |x| · (1/√π - y · p(y) / q(y)),   y = 1/x²
#
# W. J. Cody, Rational Chebyshev approximations for the error function, Math. Comp. 23 (1969).

# From the highest power down.
_A = (
    1.85777706184603153e-1,
    3.16112374387056560e0,
    1.13864154151050156e2,
    3.77485237685302021e2,
    3.20937758913846947e3,
)
_B = (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3)
_C = (
    2.15311535474403846e-8,
    5.64188496988670089e-1,
    8.88314979438837594e0,
    6.61191906371416295e1,
    2.98635138197400131e2,
    8.81952221241769090e2,
    1.71204761263407058e3,
    2.05107837782607147e3,
    1.23033935479799725e3,
)
_D = (
    1.0,
    1.57449261107098347e1,
    1.17693950891312499e2,
    5.37181101862009858e2,
    1.62138957456669019e3,
    3.29079923573345963e3,
    4.36261909014324716e3,
    3.43936767414372164e3,
    1.23033935480374942e3,
)
_P = (
    1.63153871373020978e-2,
    3.05326634961232344e-1,
    3.60344899949804439e-1,
    1.25781726111229246e-1,
    1.60837851487422766e-2,
    6.58749161529837803e-4,
)
_Q = (
    1.0,
    2.56852019228982242e0,
    1.87295284992346725e0,
    5.27905102951428412e-1,
    6.05183413124413191e-2,
    2.33520497626869185e-3,
)


def erf(op: Steps, node: ir.Node) -> ir.Value:
    x = node.inputs[0]
    assert x is not None
    size = op.Min(op.Abs(x), 30.0)  # beyond 6 it is 1; a square must not overflow
    square = op.Mul(size, size)
    near = op.Div(op.Mul(size, _polynomial(op, square, _A)), _polynomial(op, square, _B))
    bell = op.Exp(op.Neg(square))
    middle = op.Sub(1.0, op.Mul(bell, op.Div(_polynomial(op, size, _C), _polynomial(op, size, _D))))
    inverse = op.Div(1.0, op.Max(square, 1.0))
    rest = op.Mul(inverse, op.Div(_polynomial(op, inverse, _P), _polynomial(op, inverse, _Q)))
    tail = op.Div(op.Sub(1 / math.sqrt(math.pi), rest), op.Max(size, 1.0))
    far = op.Sub(1.0, op.Mul(bell, tail))
    outer = op.Where(op.LessOrEqual(size, 4.0), middle, far)
    answer: ir.Value = op.Mul(op.Sign(x), op.Where(op.LessOrEqual(size, 0.46875), near, outer))
    return answer


def _polynomial(op: Steps, x: ir.Value, coefficients: tuple[float, ...]) -> ir.Value:
    """By Horner's rule."""
    first, *rest = coefficients
    value = op.Add(op.Mul(x, first), rest[0])
    for coefficient in rest[1:]:
        value = op.Add(op.Mul(value, x), coefficient)
    answer: ir.Value = value
    return answer


# InstanceNormalization: (x - mean) / √(variance + ε) · scale + bias, mean and variance of each picture.


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


# Operators written out in simpler ones, for types that have no kernel.

_WRITTEN: dict[str, Callable[[Steps, ir.Node], ir.Value | None]] = {
    "Conv": spatial.conv,
    "ConvTranspose": spatial.conv_transpose,
    "Erf": erf,
    "GlobalAveragePool": global_average,
    "GlobalMaxPool": global_max,
    "AveragePool": average,
    "InstanceNormalization": instance_normalization,
    "Resize": spatial.resize,
}


def of(node: ir.Node, model: ir.Model) -> list[ir.Node] | None:
    """Put the node's parts in its place and give them; None if it has none, and nothing is changed."""
    if node.op_type in _WRITTEN and node.domain == "":
        steps = Steps(node)
        result = _WRITTEN[node.op_type](steps, node)
        return None if result is None else steps.replace(result)
    return function_bodies.inline(node, model)
