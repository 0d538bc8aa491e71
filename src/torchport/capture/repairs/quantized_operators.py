"""Operators on the stand-ins of quantized tensors: arithmetic, averages, embeddings, dynamic and recurrent layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from torchport.capture.repairs import recurrent
from torchport.capture.repairs.quantized_tensors import Cell, Packed, Quantized, Weight, floats, quantized
from torchport.capture.repairs.recurrent import BatchSizes
from torchport.torch_compat import registries

# Dynamically quantized layers: the input is quantized by its own extremes while the model runs.

_SMALLEST_SCALE = 6.1e-5  # SMALL_SCALE_THRESHOLD in QuantUtils.h


def linear(x: Tensor, packed: Packed) -> Tensor:
    return functional.linear(x, packed.floats(), packed.bias)


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


# Quantized embeddings: tables of 8 bits, each row with a scale and a zero point, which is no integer here.
#
# row = (integers - zero point) · scale


def embedding(weight: Packed, indices: Tensor, *_: Any) -> Tensor:
    own: Weight = weight.weight
    zeros, scales = (t[indices].unsqueeze(-1) for t in (own.zero_point, own.scale))
    return (own.values[indices].float() - zeros) * scales


def embedding_bag(
    weight: Packed,
    indices: Tensor,
    offsets: Tensor | None = None,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    pruned_weights: bool = False,
    per_sample_weights: Tensor | None = None,
    compressed_indices_mapping: Tensor | None = None,
    include_last_offset: bool = False,
) -> Tensor:
    """The sum of the rows of each bag; the only mode that is quantized."""
    if pruned_weights or compressed_indices_mapping is not None:
        raise NotImplementedError("a quantized embedding with pruned rows")
    if indices.dim() == 2:
        rows = embedding(weight, indices)
        return (rows if per_sample_weights is None else rows * per_sample_weights.unsqueeze(-1)).sum(1)
    own: Weight = weight.weight
    table = (own.values.float() - own.zero_point.unsqueeze(-1)) * own.scale.unsqueeze(-1)
    options: dict[str, Any] = {"mode": "sum", "include_last_offset": include_last_offset}
    return functional.embedding_bag(indices, table, offsets, per_sample_weights=per_sample_weights, **options)


# Averages of quantized tensors: pooling, mean, bilinear interpolation.
#
# PyTorch takes them of the integers and rounds to the nearest. Halves are common, and go to the even neighbor: before
# the zero point is added, or after, which differs where that is odd. Which of the two, tried out on torch 2.13:
#
# - after, in ATen's own kernels:                      round(average + zero point)
# - before, in QNNPACK's and in the vectorized ones:   round(average) + zero point
#
# QNNPACK has kernels for pools by a window and for those over everything; the last multiply the sum by a float number.

NAMES = {
    *(f"{kind}_pool{n}d" for kind in ("avg", "adaptive_avg") for n in (1, 2, 3)),
    *("mean", "interpolate"),
}
_VECTOR = 8  # channels that are added up at once, where they come last, as behind a convolution


def averaged(func: Any, x: Quantized, *args: Any, **kwargs: Any) -> Quantized:
    name = func.__name__
    qnnpack = torch.backends.quantized.engine == "qnnpack"
    if qnnpack and _over_everything(name, x, *args, **kwargs):
        return _rounded(x, _by_multiplier(func, x, *args, **kwargs), before_zero=True)
    vectorized = name == "avg_pool3d" or (name == "avg_pool2d" and x.shape[1] >= _VECTOR)
    before_zero = vectorized or (qnnpack and name in ("avg_pool1d", "avg_pool2d"))
    return _rounded(x, func(_centered(x), *args, **kwargs), before_zero=before_zero)


def _over_everything(name: str, x: Quantized, *args: Any, **kwargs: Any) -> bool:
    """Whether QNNPACK averages all there is: of pictures, or of rows, which it takes for pictures one high."""
    sizes = _sizes(*args, **kwargs)
    if name == "mean":
        return x.dim() == 4 and sizes == [2, 3]
    return name in ("adaptive_avg_pool1d", "adaptive_avg_pool2d") and sizes in ([1], [1, 1])


def _sizes(*args: Any, **kwargs: Any) -> list[Any]:
    """The first argument behind the tensor, of which there may be one for all axes."""
    given = next(iter((*args, *kwargs.values())), None)
    return list(given) if isinstance(given, (list, tuple)) else [given]


def _by_multiplier(func: Any, x: Quantized, *args: Any, **kwargs: Any) -> Tensor:
    axes = (2,) if func.__name__ == "adaptive_avg_pool1d" else (-2, -1)
    count = 1
    for axis in axes:
        count = count * x.shape[axis]
    keep = func.__name__ != "mean" or bool(kwargs.get("keepdim", args[1] if len(args) > 1 else False))
    scale = torch.as_tensor(x.scale, dtype=torch.float32)
    return _centered(x).sum(axes, keepdim=keep) * (scale / (scale * count))


def _centered(x: Quantized) -> Tensor:
    """The integers as floats, zero being zero."""
    return x.values.float() - x.zero_point


def _rounded(x: Quantized, numbers: Tensor, *, before_zero: bool) -> Quantized:
    """The inverse, of an average of such integers."""
    limits = torch.iinfo(x.values.dtype)
    values = torch.round(numbers) + x.zero_point if before_zero else torch.round(numbers + x.zero_point)
    return Quantized(values.clamp(limits.min, limits.max).to(x.values.dtype), x.scale, x.zero_point)


# Dynamically quantized recurrent layers.
#
# PyTorch quantizes the input of a layer once, over all steps, and the state at each step by its own extremes. ONNX's
# LSTM and GRU cannot, so they go step by step. The cells (nn.LSTMCell and its kin) are one such step.


def quantized_lstm(input: Tensor, *given: Any, **_: Any) -> tuple[Tensor, ...]:
    """In the place of torch.quantized_lstm, of a padded tensor or of packed rows with their batch sizes."""
    if isinstance(given[0], BatchSizes):
        sizes, hx, *options = given
        return _packed("LSTM", input, sizes, tuple(hx), options)
    hx, *options = given
    return _run("LSTM", input, tuple(hx), options)


def quantized_gru(input: Tensor, *given: Any, **_: Any) -> tuple[Tensor, ...]:
    """The same in the place of torch.quantized_gru, which has one state."""
    if isinstance(given[0], BatchSizes):
        sizes, hx, *options = given
        return _packed("GRU", input, sizes, (hx,), options)
    hx, *options = given
    return _run("GRU", input, (hx,), options)


def _packed(
    kind: str, rows: Tensor, sizes: BatchSizes, states: tuple[Tensor, ...], options: Sequence[Any]
) -> tuple[Tensor, ...]:
    real = sizes.real()
    padded = torch.where(real.unsqueeze(-1), sizes.pad(rows), 0.0)  # padding must not be the largest number
    padded, *last = _run(kind, padded, states, [*options, False], sizes.lengths)
    return sizes.remember(padded[real], padded), *last


def _run(
    kind: str, input: Tensor, states: tuple[Tensor, ...], options: Sequence[Any], lengths: Tensor | None = None
) -> tuple[Tensor, ...]:
    params, _, num_layers, dropout, train, bidirectional, batch_first = options
    if train and dropout and num_layers > 1:
        raise NotImplementedError("dropout between recurrent layers in train mode draws random numbers")
    cells, directions = [_Quantized(p) for p in params], 2 if bidirectional else 1
    return recurrent.run(kind, input, states, cells, directions=directions, batch_first=batch_first, lengths=lengths)


def _cell(kind: str) -> Callable[..., Any]:
    """In the place of torch.ops.quantized.quantized_lstm_cell_dynamic and its kin.

    They always quantize into the reduced range. The biases they are given besides are not used: the packed ones are.
    """

    def apply(input: Tensor, hx: Any, w_ih: Packed, w_hh: Packed, *biases: Any) -> Any:
        own = _Quantized(Cell(w_ih, w_hh, reduce_range=True))
        states = tuple(hx) if kind == "LSTM" else (hx,)
        new = recurrent.STEPS[kind](own, own.of_input(input), states)
        return new if kind == "LSTM" else new[0]

    return apply


CELLS = {f"quantized_{name}_cell_dynamic": _cell(name.upper()) for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")}


class _Quantized:
    """A cell whose weights are quantized."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell

    def of_input(self, x: Tensor) -> Tensor:
        return self._apply(self._cell.input, x)

    def of_hidden(self, h: Tensor) -> Tensor:
        return self._apply(self._cell.hidden, h)

    def projected(self, h: Tensor) -> Tensor:
        return h

    def traced(self) -> _Quantized:
        return _Quantized(Cell(self._cell.input, self._cell.hidden.traced(), self._cell.reduce_range))

    def _apply(self, packed: Packed, x: Tensor) -> Tensor:
        if isinstance(packed.weight, Tensor):  # of 16 bits
            return linear(x, packed)
        return linear_dynamic(x, packed, self._cell.reduce_range)


# What operators do with the stand-ins of quantized_tensors.py.


def call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What torch would do if the stand-ins were what they stand for."""
    if str(func).startswith("quantized."):
        return _quantized_operator(func, args, kwargs)
    name = getattr(func, "__name__", "")
    if name == "dequantize":
        return args[0].dequantize()
    first = next(a for a in _flat(args) if isinstance(a, Quantized))
    if name in NAMES:
        return averaged(func, *args, **kwargs)
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
        names = [a.name for a in registries.schema(overload).arguments]
        required = sum(not a.has_default_value() for a in registries.schema(overload).arguments)
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
