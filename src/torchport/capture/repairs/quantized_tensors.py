"""What stands for quantized tensors and packed weights while a model is captured.

See quantized.py, which puts them in place, and quantized_operators.py for what operators do with them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from torchport.torch_compat.tracing import register_structure

_RANGES = {torch.uint8: (0, 255), torch.int8: (-128, 127)}
_INTEGERS = {torch.quint8: torch.uint8, torch.qint8: torch.int8}


@dataclasses.dataclass
class Weight:
    """An integer weight with its scales: one for all, or one for each place along `axis`."""

    values: Tensor
    scale: Tensor
    zero_point: Tensor
    axis: int | None

    @classmethod
    def of(cls, weight: Tensor) -> Weight:
        values = weight.int_repr()
        if weight.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
            scale, zero = torch.tensor([weight.q_scale()]), torch.tensor([weight.q_zero_point()])
            return cls(values, scale.float(), zero, None)
        scales, zeros = weight.q_per_channel_scales(), weight.q_per_channel_zero_points()
        return cls(values, scales.float(), zeros, weight.q_per_channel_axis())

    def floats(self) -> Tensor:
        operators = torch.ops.quantized_decomposed
        low, high = _RANGES[self.values.dtype]
        if self.axis is not None:
            return operators.dequantize_per_channel(
                self.values, self.scale, self.zero_point, self.axis, low, high, self.values.dtype
            )
        return operators.dequantize_per_tensor.tensor(
            self.values, self.scale, self.zero_point, low, high, self.values.dtype
        )


def _call(func: Any, args: Any, kwargs: Any) -> Any:
    from torchport.capture.repairs import quantized_operators  # which knows these classes

    return quantized_operators.call(func, args, kwargs)


class Overloads:
    """Whatever operator it is given to, quantized_operators.py answers."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _call(func, args, kwargs or {})


class Packed(Overloads):
    """The weight and the bias of a linear or convolutional layer, and what else the packed object knows."""

    def __init__(self, weight: Any, bias: Tensor | None, options: dict[str, Any]) -> None:
        self.weight = weight
        self.bias = bias
        self.options = options

    def floats(self) -> Tensor:
        return self.weight.floats() if isinstance(self.weight, Weight) else self.weight.float()

    def traced(self) -> Packed:
        """The same as values of the graph: the body of a loop takes nothing else from outside."""
        weight = self.weight
        if isinstance(weight, Weight):
            weight = Weight(weight.values.clone(), weight.scale.clone(), weight.zero_point.clone(), weight.axis)
        else:
            weight = weight.clone()
        return Packed(weight, None if self.bias is None else self.bias.clone(), self.options)

    def with_integer_bias(self, scale: Any) -> Packed:
        """QNNPACK adds a bias to the integer sums, rounded to one of them."""
        if self.bias is None or not isinstance(self.weight, Weight):
            return self
        step = scale * self.weight.scale
        return Packed(self.weight, torch.round(self.bias / step) * step, self.options)


class Cell(Overloads):
    """The packed weights of one direction of a recurrent layer."""

    def __init__(self, input: Packed, hidden: Packed, reduce_range: bool) -> None:
        self.input = input
        self.hidden = hidden
        self.reduce_range = reduce_range


class Quantized(Overloads):
    """Stands for a quantized tensor. Its methods are a tensor's: `x.view(...)` goes the way of `torch.Tensor.view`."""

    def __init__(self, values: Tensor, scale: Any, zero_point: Any) -> None:
        self.values = values
        self.scale = scale
        self.zero_point = zero_point

    def dequantize(self) -> Tensor:
        low, high = _RANGES[self.values.dtype]
        operator = torch.ops.quantized_decomposed.dequantize_per_tensor
        given = (self.values, self.scale, self.zero_point, low, high, self.values.dtype)
        return operator.tensor(*given) if isinstance(self.scale, Tensor) else operator(*given)

    def like(self, numbers: Tensor) -> Quantized:
        """The numbers quantized as this one is."""
        return quantized(numbers, self.scale, self.zero_point, self.values.dtype)

    def __getattr__(self, name: str) -> Any:
        if name in ("shape", "device", "ndim", "layout"):
            return getattr(self.values, name)
        if name in ("size", "dim", "numel", "stride"):
            return getattr(self.values, name)
        method = getattr(torch.Tensor, name)
        return lambda *args, **kwargs: _call(method, (self, *args), kwargs)

    def __getitem__(self, index: Any) -> Quantized:
        return Quantized(self.values[index], self.scale, self.zero_point)


def quantized(numbers: Tensor, scale: Any, zero_point: Any, dtype: torch.dtype) -> Quantized:
    low, high = _RANGES[dtype]
    operator = torch.ops.quantized_decomposed.quantize_per_tensor
    given = (numbers, scale, zero_point, low, high, dtype)
    return Quantized(operator.tensor(*given) if isinstance(scale, Tensor) else operator(*given), scale, zero_point)


def quantize_per_tensor(x: Tensor, scale: Any, zero_point: Any, dtype: torch.dtype) -> Quantized:
    return quantized(x, scale, zero_point, _INTEGERS[dtype])


def floats(value: Any) -> Any:
    if isinstance(value, Quantized):
        return value.dequantize()
    return type(value)(floats(v) for v in value) if isinstance(value, (list, tuple)) else value


def _register(kind: type[Any]) -> None:
    """Let torch's own walks through structures find the tensors inside: the body of a loop must be given them."""

    def apart(value: Any) -> tuple[list[Any], dict[str, Any]]:
        inside = {k: v for k, v in vars(value).items() if isinstance(v, (Tensor, Weight))}
        return list(inside.values()), {**vars(value), **dict.fromkeys(inside, _INSIDE)}

    def together(inside: Iterable[Any], rest: dict[str, Any]) -> Any:
        value, left = object.__new__(kind), iter(inside)
        vars(value).update({k: next(left) if v is _INSIDE else v for k, v in rest.items()})
        return value

    register_structure(kind, apart, together)


_INSIDE = object()


@functools.cache
def register_structures() -> None:
    """Make structures of the stand-ins, once."""
    for kind in (Weight, Packed, Quantized):
        _register(kind)
