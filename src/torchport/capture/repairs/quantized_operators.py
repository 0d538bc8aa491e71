"""What operators do with the stand-ins of quantized_tensors.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from torchport.capture.repairs import quantized_averages
from torchport.capture.repairs.quantized_dynamic import linear, linear_dynamic
from torchport.capture.repairs.quantized_embeddings import embedding, embedding_bag
from torchport.capture.repairs.quantized_recurrent import CELLS
from torchport.capture.repairs.quantized_tensors import Packed, Quantized, floats, quantized


def call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What torch would do if the stand-ins were what they stand for."""
    if str(func).startswith("quantized."):
        return _quantized_operator(func, args, kwargs)
    name = getattr(func, "__name__", "")
    if name == "dequantize":
        return args[0].dequantize()
    first = next(a for a in _flat(args) if isinstance(a, Quantized))
    if name in quantized_averages.NAMES:
        return quantized_averages.averaged(func, *args, **kwargs)
    answer = func(*floats(args), **{k: floats(v) for k, v in kwargs.items()})
    if isinstance(answer, (list, tuple)):
        return type(answer)(map(first.like, answer))
    if not isinstance(answer, Tensor) or not answer.is_floating_point():
        return answer
    return quantized(answer, *_FIXED[name], torch.uint8) if name in _FIXED else first.like(answer)


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
    if name in _WHOLE:
        return _WHOLE[name](*given.values())
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


def _prelu(x: Quantized, weight: Quantized, scale: Any, zero_point: Any) -> Quantized:
    """A product of integers, with a one for positive numbers that is quantized as the slopes are.

    It is cut to the largest slope the weight can hold. That is how PyTorch has it: a slope of 0.25 holds on both sides.
    """
    limits = torch.iinfo(weight.values.dtype)
    one = min(max(round(1 / weight.scale) + weight.zero_point, limits.min), limits.max) - weight.zero_point
    slopes = weight.values.float() - weight.zero_point
    slopes = slopes.reshape(-1, *[1] * (x.dim() - 2)) if x.dim() > 1 else slopes
    numbers = x.values.float() - x.zero_point
    by_scale, own, to_scale = (torch.as_tensor(s, dtype=torch.float32) for s in (x.scale, weight.scale, scale))
    products = numbers * torch.where(numbers > 0, float(one), slopes) * (by_scale * own / to_scale)
    limits = torch.iinfo(x.values.dtype)
    values = (torch.round(products) + zero_point).clamp(limits.min, limits.max)
    return Quantized(values.to(x.values.dtype), scale, zero_point)


# They are given the stand-ins themselves.
_WHOLE: dict[str, Callable[..., Any]] = {
    "linear_dynamic": linear_dynamic,
    "linear_relu_dynamic": lambda *given: torch.relu(linear_dynamic(*given)),
    "linear_dynamic_fp16": linear,
    "linear_relu_dynamic_fp16": lambda *given: torch.relu(linear(*given)),
    "embedding_byte": embedding,
    "embedding_bag_byte": embedding_bag,
    "prelu": _prelu,
    **CELLS,
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
    "layer_norm": functional.layer_norm,
    "group_norm": functional.group_norm,
    "instance_norm": lambda x, weight, bias, eps: functional.instance_norm(x, weight=weight, bias=bias, eps=eps),
    "batch_norm2d": lambda x, weight, bias, mean, var, eps: functional.batch_norm(x, mean, var, weight, bias, eps=eps),
    "batch_norm3d": lambda x, weight, bias, mean, var, eps: functional.batch_norm(x, mean, var, weight, bias, eps=eps),
}
