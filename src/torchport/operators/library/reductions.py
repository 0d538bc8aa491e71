"""Reductions of tensors without axes or elements, and cumulative ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from onnxscript import opset18

from torchport.operators.composition import only_where
from torchport.operators.registration import composes, translates
from torchport.torch_compat.exporter import call_op

# aten::amax, aten::amin, aten::prod.dim_int, aten::all, aten::any of a tensor without axes
#
#     output = input, and input != 0 for all and any
#
# PyTorch lets the axis of a single number be called 0 or -1. ONNX does not, and torch passes it on.

op: Any = opset18  # its annotations know eager tensors only, not a graph's values


def extreme(reduce: str) -> Callable[..., Any]:
    """The translation of amax (ReduceMax) or amin (ReduceMin)."""

    def translate(self: Any, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
        if len(self.shape) == 0:
            return op.Identity(self)
        axes = [op.Constant(value_ints=list(dim))] if dim else []
        x = op.Cast(self, to=ir.DataType.INT32) if self.dtype == ir.DataType.BOOL else self
        reduced = getattr(op, reduce)(x, *axes, keepdims=int(keepdim))
        return op.Cast(reduced, to=self.dtype) if x is not self else reduced

    return translate


@translates("aten::prod.dim_int")
def prod(self: Any, dim: int, keepdim: bool = False, dtype: int = -1) -> Any:
    """Translate one call; whole numbers are multiplied in 64 bits."""
    wide = self.dtype.is_integer() or self.dtype == ir.DataType.BOOL
    kind = (ir.DataType.INT64 if wide else self.dtype) if dtype == -1 else ir.DataType(dtype)
    x = op.Cast(self, to=kind)
    if len(self.shape) == 0:
        return x
    return op.ReduceProd(x, op.Constant(value_ints=[dim]), keepdims=int(keepdim))


@composes("aten::all.dim", "aten::any.dim", "aten::all.dims", "aten::any.dims")
@only_where(lambda self, *_, **__: self.dim() == 0)
def truth(self: torch.Tensor, dim: Any = None, keepdim: bool = False) -> torch.Tensor:
    return (self != 0).to(torch.uint8 if self.dtype == torch.uint8 else torch.bool)


translates("aten::amax.default")(extreme("ReduceMax"))
translates("aten::amin.default")(extreme("ReduceMin"))


# aten::var, aten::std, aten::var_mean, aten::std_mean of no numbers, or of no more than the correction
#
#     var = sum((x - mean)²) / max(n - correction, 0), mean = sum(x) / n
#
# Both are NaN, or infinite, where PyTorch divides by zero. ONNX Runtime's mean of nothing is zero.
#
# Source of truth: PyTorch's answers.


def variance(root: bool, with_mean: bool, arguments: str) -> Callable[..., Any]:
    """The composition for one overload: that without axes, with `dim`, or with `correction`."""

    def result(x: Any, dim: Sequence[int] | None, correction: float, keepdim: bool) -> Any:
        axes = list(dim) if dim else list(range(x.dim()))
        n = _count(x, dim)
        mean = x.sum(axes, keepdim=True) / n
        var = (x - mean).square().sum(axes, keepdim=keepdim) / max(n - correction, 0.0)
        spread = var.sqrt() if root else var
        return (spread, mean if keepdim else x.sum(axes) / n) if with_mean else spread

    def applies(x: Any, dim: Sequence[int] | None, correction: float, keepdim: bool) -> bool:
        n = _count(x, dim)
        return isinstance(n, int) and n <= correction

    def plain(self: Any, unbiased: bool = True) -> Any:
        return self, None, float(unbiased), False

    def along(self: Any, dim: Any, unbiased: bool = True, keepdim: bool = False) -> Any:
        return self, dim, float(unbiased), keepdim

    def corrected(self: Any, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Any:
        return self, dim, 1.0 if correction is None else float(correction), keepdim

    forms: dict[str, Callable[..., Any]] = {"default": plain, "dim": along, "correction": corrected}
    read = forms[arguments]

    @only_where(lambda *args, **kwargs: applies(*read(*args, **kwargs)))
    def composition(*args: Any, **kwargs: Any) -> Any:
        return result(*read(*args, **kwargs))

    return composition


def _count(x: Any, dim: Sequence[int] | None) -> Any:
    return math.prod(x.shape[axis] for axis in dim) if dim and x.dim() else math.prod(x.shape)


for _name in ("var", "std", "var_mean", "std_mean"):
    for _overload in ("default", "dim", "correction"):
        composes(f"aten::{_name}.{_overload}")(variance(_name.startswith("std"), _name.endswith("_mean"), _overload))


# aten::cumprod, aten::cummax, aten::cummin, aten::logcumsumexp
#
#     after each number x of the axis:
#     cumprod        p = p · x
#     cummax         m, i = x, number's place    where x >= m or x is NaN
#     cummin         m, i = x, number's place    where x <= m or x is NaN
#     logcumsumexp   l = max(l, x) + log(1 + e^-|l - x|)
#
# ONNX's Scan takes the numbers one after the other, as PyTorch does, whatever their count. Combining halves instead
# would take fewer steps, but a product of halves may be 0 · ∞ where the numbers in turn give 0. Floats are kept in 64
# bits in between, as in PyTorch on a CPU: a product that leaves the range of 32 bits may come back.
#
# Source of truth: ATen's native/cpu/ReduceOpsKernel.cpp and native/ReduceOps.cpp.

_INT64, _DOUBLE = ir.DataType.INT64, ir.DataType.DOUBLE
_FLOATS = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE)


@translates("aten::cumprod.default")
def cumprod(self: Any, dim: int, dtype: int = -1) -> Any:
    """Translate one call; whole numbers are kept in 64 bits."""
    kind = (self.dtype if self.dtype in _FLOATS else _INT64) if dtype == -1 else ir.DataType(dtype)
    wide = _DOUBLE if kind in _FLOATS else _INT64
    if _is_trivial(self):
        return op.Cast(self, to=kind)
    body = _Body(f"{self.name}_cumprod_{dim}")
    product, number = body.state(wide), body.state(self.dtype)
    x = body("Cast", body("Cast", number, to=kind), to=wide)
    after = body("Mul", product, x)
    return _scan(body, [(1, wide)], self, dim, [after], [body("Cast", after, to=kind)])[0]


@translates("aten::logcumsumexp.default")
def logcumsumexp(self: Any, dim: int) -> Any:
    if _is_trivial(self):
        return op.Identity(self)
    body = _Body(f"{self.name}_logcumsumexp_{dim}")
    log, number = body.state(_DOUBLE), body.state(self.dtype)
    x = body("Cast", number, to=_DOUBLE)
    zero, one = body.constant(0.0, _DOUBLE), body.constant(1.0, _DOUBLE)
    apart = body("Where", body("Equal", log, x), zero, body("Abs", body("Sub", log, x)))  # ∞ - ∞ is no number
    more = body("Log", body("Add", one, body("Exp", body("Neg", apart))))
    after = body("Add", body("Where", body("Greater", x, log), x, log), more)
    outputs = [body("Cast", after, to=self.dtype)]
    return _scan(body, [(-np.inf, _DOUBLE)], self, dim, [after], outputs)[0]


def running_extreme(compare: str) -> Callable[[Any, int], Any]:
    """The translation of cummax (GreaterOrEqual) or cummin (LessOrEqual): values and where they were."""

    def translate(self: Any, dim: int) -> Any:
        if _is_trivial(self):
            return op.Identity(self), op.Expand(op.Constant(value_int=0), op.Shape(self))
        kind = self.dtype if self.dtype in (ir.DataType.FLOAT, _DOUBLE, _INT64) else ir.DataType.INT32
        kind = ir.DataType.FLOAT if self.dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16) else kind
        body = _Body(f"{self.name}_{compare}_{dim}")
        best, place, here, number = (body.state(t) for t in (kind, _INT64, _INT64, self.dtype))
        x = body("Cast", number, to=kind)
        better = body(compare, x, best)
        if kind in _FLOATS:
            better = body("Or", better, body("IsNaN", x))  # then it stays: nothing is more or less than NaN
        value, index = body("Where", better, x, best), body("Where", better, here, place)
        following = body("Add", here, body.constant(1, _INT64))
        starts = [(_worst(compare, kind), kind), (0, _INT64), (0, _INT64)]
        outputs = [body("Cast", value, to=self.dtype), body("Identity", index)]
        return _scan(body, starts, self, dim, [value, index, following], outputs)

    return translate


def _is_trivial(x: Any) -> bool:
    """Without an axis, or without a number."""
    return len(x.shape) == 0 or 0 in x.shape


def _worst(compare: str, kind: ir.DataType) -> float:
    """What every number is at least as good as."""
    lowest = compare == "GreaterOrEqual"
    if kind in _FLOATS:
        return -np.inf if lowest else np.inf
    limits = np.iinfo(kind.numpy())
    return int(limits.min if lowest else limits.max)


class _Body:
    """The graph that Scan runs for each number: called with an ONNX operator, it adds a node."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.inputs: list[ir.Value] = []
        self.nodes: list[ir.Node] = []

    def state(self, kind: ir.DataType) -> ir.Value:
        """What comes in: the states in their order, then the number of the axis."""
        value = ir.Value(name=f"{self.name}_in_{len(self.inputs)}", type=ir.TensorType(kind))
        self.inputs.append(value)
        return value

    def constant(self, number: float, kind: ir.DataType) -> ir.Value:
        return self("Constant", value=ir.tensor(number, dtype=kind))

    def __call__(self, operator: str, *inputs: ir.Value, **attributes: Any) -> ir.Value:
        node = ir.node(operator, list(inputs), attributes)
        node.outputs[0].name = f"{self.name}_{len(self.nodes)}"
        self.nodes.append(node)
        return node.outputs[0]


def _scan(
    body: _Body,
    starts: Sequence[tuple[float, ir.DataType]],
    x: Any,
    dim: int,
    states: Sequence[ir.Value],
    outputs: Sequence[ir.Value],
) -> Any:
    """Run the body along an axis of x; each state begins as the number given, in the shape that x has without it."""
    rank = len(x.shape)
    axis = dim % rank
    free = [i for i, size in enumerate(x.shape) if not isinstance(size, int)]
    x = _longer(x, free, rank)
    sizes = [op.Shape(x, start=i, end=i + 1) for i in range(rank) if i != axis]
    shape = op.Concat(*sizes, axis=0) if sizes else op.Constant(value=ir.tensor([], dtype=_INT64))
    begun = [op.Expand(op.Constant(value=ir.tensor(number, dtype=kind)), shape) for number, kind in starts]
    results = call_op(
        "Scan",
        *begun,
        x,
        _num_outputs=len(states) + len(outputs),
        body=ir.Graph(body.inputs, [*states, *outputs], nodes=body.nodes, name=body.name),
        num_scan_inputs=1,
        scan_input_axes=[axis],
        scan_output_axes=[axis] * len(outputs),
    )
    return [_shorter(result, free) for result in results[len(states) :]]


def _longer(x: Any, axes: Sequence[int], rank: int) -> Any:
    """One more along these axes, whose sizes vary: ONNX Runtime's Scan divides by zero when nothing is there."""
    if not axes:
        return x
    return op.Pad(x, op.Constant(value_ints=[0] * rank + [int(i in axes) for i in range(rank)]))


def _shorter(x: Any, axes: Sequence[int]) -> Any:
    if not axes:
        return x
    return op.Slice(x, *(op.Constant(value_ints=v) for v in ([0] * len(axes), [-1] * len(axes), list(axes))))


translates("aten::cummax.default")(running_extreme("GreaterOrEqual"))
translates("aten::cummin.default")(running_extreme("LessOrEqual"))
