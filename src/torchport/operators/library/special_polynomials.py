"""aten::special_{chebyshev_polynomial_{t,u,v,w}, shifted_chebyshev_polynomial_{t,u,v,w}, hermite_polynomial_{h,he},
laguerre_polynomial_l, legendre_polynomial_p}

All begin with 1 and a line, and go on from two to the next (q after p, k = 1, 2, …):

    T, U, V, W    x, 2x, 2x - 1, 2x + 1     2x·q - p                        shifted: with 2x - 1 for x
    H, He         2x, x                     2x·q - 2k·p, x·q - k·p
    L, P          1 - x, x                  ((2k + 1 - x)·q - k·p) / (k + 1), ((2k + 1)·x·q - k·p) / (k + 1)

The degree is a tensor, known when the model runs, so this is an ONNX Loop of as many steps as the largest degree asks
for; a number that has reached its own stays. It runs in float64, but what the output's type cannot hold is infinite,
as in PyTorch, where the next but one is NaN.

Source of truth: ATen's native/Math.h: zero for a degree below zero, and Hermite's are NaN above 128 (float64: 512). Of
NaN it gives what it finds in memory; here that is NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import torch
from onnxscript import opset18
from torch import Tensor

from torchport.operators.library.special_float64 import floating, nan_where, of_number_and_tensor, of_tensor_and_number
from torchport.operators.registration import composes, translates
from torchport.torch_compat.exporter import call_op

op: Any = opset18  # its annotations know eager tensors only, not a graph's values

_DOUBLE, _INT64 = ir.DataType.DOUBLE, ir.DataType.INT64
_LINES: dict[str, Callable[[Tensor], Tensor]] = {
    "chebyshev_polynomial_t": lambda x: x,
    "chebyshev_polynomial_u": lambda x: 2 * x,
    "chebyshev_polynomial_v": lambda x: 2 * x - 1,
    "chebyshev_polynomial_w": lambda x: 2 * x + 1,
    "hermite_polynomial_h": lambda x: 2 * x,
    "hermite_polynomial_he": lambda x: x,
    "laguerre_polynomial_l": lambda x: 1 - x,
    "legendre_polynomial_p": lambda x: x,
}

_library = torch.library.Library("torchport", "FRAGMENT")
_library.define("three_terms(Tensor x, Tensor line, Tensor n, str kind, float largest) -> Tensor")


@torch.library.register_fake("torchport::three_terms", lib=_library)
def _three_terms_shape(x: Tensor, line: Tensor, n: Tensor, kind: str, largest: float) -> Tensor:
    return torch.empty_like(x)


def composed(kind: str, shifted: bool) -> Callable[[Tensor, Tensor], Tensor]:
    """One operator; all but the steps is plain PyTorch."""

    def run(x: Tensor, n: Tensor) -> Tensor:
        dtype = floating(x, n)
        limits = torch.finfo(dtype)
        x, degree = torch.broadcast_tensors(x.to(dtype).to(torch.float64), n.to(torch.int64))
        x = 2 * x - 1 if shifted else x
        highest = {32: 128, 64: 512}.get(limits.bits, 1024) if kind.startswith("hermite") else None
        steps = degree if highest is None else torch.clamp(degree, max=highest)
        three_terms: Any = torch.ops.torchport.three_terms
        result = three_terms(x, _LINES[kind](x), steps, kind, limits.max)
        result = torch.where(degree == 0, torch.ones_like(x), result)
        result = torch.where(degree < 0, torch.zeros_like(x), result)
        return (result if highest is None else nan_where(degree > highest, result)).to(dtype)

    return run


class _Body:
    """The graph that Loop runs for each step: called with an ONNX operator, it adds a node."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.nodes: list[ir.Node] = []

    def number(self, number: float) -> ir.Value:
        return self("Constant", value=ir.tensor(float(number), dtype=_DOUBLE))

    def __call__(self, operator: str, *inputs: Any, **attributes: Any) -> ir.Value:
        node = ir.node(operator, list(inputs), attributes)
        node.outputs[0].name = f"{self.name}_{len(self.nodes)}"
        self.nodes.append(node)
        return node.outputs[0]


@translates("torchport::three_terms.default")
def three_terms(x: Any, line: Any, n: Any, kind: str, largest: float) -> Any:
    """Translate torchport::three_terms: the polynomial of the degrees n; the line for all below two."""
    body = _Body(f"{line.name}_{n.name}_{kind}")
    scalar, shape = ir.Shape([]), x.shape
    inputs = [
        ir.Value(name=f"{body.name}_{name}", type=ir.TensorType(kind), shape=of)
        for name, kind, of in (
            ("count", _INT64, scalar),
            ("going", ir.DataType.BOOL, scalar),
            ("before", _DOUBLE, shape),
            ("last", _DOUBLE, shape),
        )
    ]
    count, going, p, q = inputs
    one = body("Constant", value=ir.tensor(1, dtype=_INT64))
    step = body("Add", count, one)
    following = _next(body, kind, x, body("Cast", step, to=_DOUBLE), p, q)
    infinite = body("Div", following, body.number(0))
    fits = body("LessOrEqual", body("Abs", following), body.number(largest))
    following = body("Where", body("Or", fits, body("IsNaN", following)), following, infinite)
    active = body("Less", step, n)
    outputs = [body("Identity", going), body("Where", active, q, p), body("Where", active, following, q)]

    degrees = op.Concat(op.Reshape(n, op.Constant(value_ints=[-1])), op.Constant(value_ints=[1]), axis=0)
    trips = op.Sub(op.ReduceMax(degrees, keepdims=0), op.Constant(value_int=1))
    start = op.Expand(op.Constant(value=ir.tensor(1.0, dtype=_DOUBLE)), op.Shape(x))
    graph = ir.Graph(inputs, outputs, nodes=body.nodes, name=body.name)
    forever = op.Constant(value=ir.tensor(True))
    return call_op("Loop", trips, forever, start, line, _num_outputs=2, body=graph)[1]


def _next(body: _Body, kind: str, x: Any, k: Any, p: Any, q: Any) -> ir.Value:
    if kind.startswith("chebyshev"):
        return body("Sub", body("Mul", body("Add", x, x), q), p)
    less = body("Mul", k, p)
    if kind.startswith("hermite"):
        result = body("Sub", body("Mul", x, q), less)
        return body("Add", result, result) if kind.endswith("_h") else result
    odd = body("Add", body("Add", k, k), body.number(1))
    slope = body("Sub", odd, x) if kind.startswith("laguerre") else body("Mul", odd, x)
    return body("Div", body("Sub", body("Mul", slope, q), less), body("Add", k, body.number(1)))


for _kind in _LINES:
    for _name in (_kind, f"shifted_{_kind}") if _kind.startswith("chebyshev") else (_kind,):
        _polynomial_of = composed(_kind, shifted=_name != _kind)
        composes(f"aten::special_{_name}.default")(_polynomial_of)
        composes(f"aten::special_{_name}.x_scalar")(of_number_and_tensor(_polynomial_of))
        composes(f"aten::special_{_name}.n_scalar")(of_tensor_and_number(_polynomial_of))
