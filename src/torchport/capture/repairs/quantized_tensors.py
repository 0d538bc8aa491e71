"""What stands for quantized tensors and packed weights while a model is captured, and what operators do with it.

See quantized.py, which puts them in place.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_SMALLEST_SCALE = 6.1e-5  # SMALL_SCALE_THRESHOLD in QuantUtils.h
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


class Overloads:
    """Whatever operator it is given to, `_call` answers."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return call(func, args, kwargs or {})


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

    def centered(self) -> Tensor:
        """The integers as floats, zero being zero."""
        return self.values.float() - self.zero_point

    def rounded(self, numbers: Tensor) -> Quantized:
        """The inverse, of an average of such integers."""
        low, high = _RANGES[self.values.dtype]
        values = (torch.round(numbers) + self.zero_point).clamp(low, high).to(self.values.dtype)
        return Quantized(values, self.scale, self.zero_point)

    def __getattr__(self, name: str) -> Any:
        if name in ("shape", "device", "ndim", "layout"):
            return getattr(self.values, name)
        if name in ("size", "dim", "numel", "stride"):
            return getattr(self.values, name)
        method = getattr(torch.Tensor, name)
        return lambda *args, **kwargs: call(method, (self, *args), kwargs)

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


# --- operators --------------------------------------------------------------------------------------------------------


def call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What torch would do if the stand-ins were what they stand for."""
    if str(func).startswith("quantized."):
        return _quantized_operator(func, args, kwargs)
    name = getattr(func, "__name__", "")
    if name == "dequantize":
        return args[0].dequantize()
    first = next(a for a in _flat(args) if isinstance(a, Quantized))
    if name in _AVERAGES:
        return first.rounded(func(first.centered(), *args[1:], **kwargs))
    answer = func(*floats(args), **{k: floats(v) for k, v in kwargs.items()})
    if isinstance(answer, (list, tuple)):
        return type(answer)(map(first.like, answer))
    if not isinstance(answer, Tensor) or not answer.is_floating_point():
        return answer
    return quantized(answer, *_FIXED[name], torch.uint8) if name in _FIXED else first.like(answer)


# PyTorch takes these of the integers and rounds. Halves are common among them, and must stay so to be rounded alike.
_AVERAGES = {"mean", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "interpolate"}

# Their answers lie between fixed ends, so PyTorch quantizes them with fixed numbers.
_FIXED = {"sigmoid": (1 / 256, 0), "hardsigmoid": (1 / 256, 0), "tanh": (2 / 256, 128), "softmax": (1 / 256, 0)}


def _flat(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _flat(value)
        else:
            yield value


def _quantized_operator(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An operator of torch.ops.quantized. Scale and zero point of its answer are the arguments called so."""
    name = str(func).removeprefix("quantized.").partition(".")[0]
    given = {**dict(zip(_names(func, args, kwargs), args, strict=False)), **kwargs}
    if name in _DYNAMIC:
        return _DYNAMIC[name](*given.values())
    function = _STATIC.get(name.removesuffix("_relu"))
    if function is None:
        raise NotImplementedError(f"the operator quantized::{name}")
    scale, zero_point = (next((v for k, v in given.items() if word in k.lower()), None) for word in _OUTPUT)
    rest = [floats(v) for k, v in given.items() if not any(word in k.lower() for word in _OUTPUT)]
    first = next(a for a in _flat(args) if isinstance(a, Quantized))
    if torch.backends.quantized.engine == "qnnpack":
        rest = [v.with_integer_bias(first.scale) if isinstance(v, Packed) else v for v in rest]
    answer = function(*rest)
    answer = torch.relu(answer) if name.endswith("_relu") and name != "leaky_relu" else answer
    return first.like(answer) if scale is None else quantized(answer, scale, zero_point, first.values.dtype)


_OUTPUT = ("scale", "zero_point")


def _names(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """The arguments' names in the overload that takes as many as were given."""
    for overload in [getattr(func, name) for name in func.overloads()] if hasattr(func, "overloads") else [func]:
        names = [a.name for a in overload._schema.arguments]
        required = sum(not a.has_default_value() for a in overload._schema.arguments)
        if required <= len(args) + len(kwargs) <= len(names) and kwargs.keys() <= set(names):
            return names
    raise NotImplementedError(f"the operator {func} with {len(args)} arguments")


def linear(x: Tensor, packed: Packed) -> Tensor:
    return functional.linear(x, packed.floats(), packed.bias)


def _convolution(rank: int) -> Callable[..., Tensor]:
    def apply(x: Tensor, packed: Packed) -> Tensor:
        weight, options = packed.floats(), packed.options
        if weight.dim() == rank + 3:  # a row is kept as a picture one high
            weight = weight.squeeze(2)
        sides = [options[n][-rank:] for n in ("stride", "padding", "output_padding", "dilation")]
        stride, padding, output_padding, dilation = sides
        if options["transpose"]:
            turned = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)[rank - 1]
            return turned(x, weight, packed.bias, stride, padding, output_padding, options["groups"], dilation)
        plain = (functional.conv1d, functional.conv2d, functional.conv3d)[rank - 1]
        return plain(x, weight, packed.bias, stride, padding, dilation, options["groups"])

    return apply


def linear_dynamic(x: Tensor, packed: Packed, reduce_range: bool = False) -> Tensor:
    """The input quantized by its own extremes, then a product of integers."""
    weight = packed.weight
    values, scale, zero_point = _quantize_dynamically(x, reduce_range=reduce_range)
    zeros = weight.zero_point.to(weight.values.dtype)
    zeros = zeros if weight.axis is not None else zeros.squeeze(0)
    sums = torch.ops.torchport.matmul_integer(values, weight.values.t(), zero_point, zeros)
    answer: Tensor = sums.float() * (scale * weight.scale)
    return answer if packed.bias is None else answer + packed.bias


def _quantize_dynamically(x: Tensor, *, reduce_range: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Integers, scale and zero point by the numbers themselves, zero among them."""
    top = 127 if reduce_range else 255
    low, high = x.min().clamp(max=0).double(), x.max().clamp(min=0).double()
    scale = (high - low) / top
    scale = torch.where(scale.float() == 0, 0.1, scale)
    zero_point = torch.round(-low / scale).clamp(0, top).float()
    scale = scale.clamp(min=_SMALLEST_SCALE).float()
    values = (torch.round(x * (1 / scale)) + zero_point).clamp(0, top)
    return values.to(torch.uint8), scale, zero_point.to(torch.uint8)


def _embedding_byte(weight: Packed, indices: Tensor, *_: Any) -> Tensor:
    """Each row has a scale and a zero point, which is no integer here."""
    own: Weight = weight.weight
    zeros, scales = (t[indices].unsqueeze(-1) for t in (own.zero_point, own.scale))
    return (own.values[indices].float() - zeros) * scales


_DYNAMIC: dict[str, Callable[..., Any]] = {
    "linear_dynamic": linear_dynamic,
    "linear_relu_dynamic": lambda *given: torch.relu(linear_dynamic(*given)),
    "linear_dynamic_fp16": linear,
    "linear_relu_dynamic_fp16": lambda *given: torch.relu(linear(*given)),
    "embedding_byte": _embedding_byte,
}

# By the name without `_relu`, which is applied after; scale and zero point are left out of the arguments.
_STATIC: dict[str, Callable[..., Tensor]] = {
    "linear": linear,
    **{f"conv{n}d": _convolution(n) for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": _convolution(n) for n in (1, 2, 3)},
    "conv2d_add": lambda x, other, packed: _convolution(2)(x, packed) + other,
    "add": torch.add,
    "mul": torch.mul,
    "matmul": torch.matmul,
    "cat": torch.cat,
    "hardswish": functional.hardswish,
    "leaky": lambda x, slope, inplace=False: functional.leaky_relu(x, slope),
    "elu": functional.elu,
    "sigmoid": torch.sigmoid,
    "softmax": torch.softmax,
    "relu6": lambda x, inplace=False: functional.relu6(x),
    "prelu": functional.prelu,
    "layer_norm": functional.layer_norm,
    "group_norm": functional.group_norm,
    "instance_norm": lambda x, weight, bias, eps: functional.instance_norm(x, weight=weight, bias=bias, eps=eps),
    "batch_norm2d": lambda x, weight, bias, mean, var, eps: functional.batch_norm(x, mean, var, weight, bias, eps=eps),
    "batch_norm3d": lambda x, weight, bias, mean, var, eps: functional.batch_norm(x, mean, var, weight, bias, eps=eps),
}
