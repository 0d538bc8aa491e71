"""Quantized layers with packed weights, and fake-quantizing modules."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from torchport.capture.repairs.quantized_operators import quantized_gru, quantized_lstm
from torchport.capture.repairs.quantized_tensors import (
    Cell,
    Overloads,
    Packed,
    Quantized,
    Weight,
    quantize_per_tensor,
    register_structures,
)
from torchport.capture.repairs.repair import capture_repair
from torchport.operators import library
from torchport.torch_compat import parts
from torchport.torch_compat.error_texts import says

# Quantized layers, whose weights are packed in objects that no capture can look into.
#
# During a capture each packed object is replaced by a stand-in with the integers, scales and biases that were in it,
# and a quantized tensor by a record of integers, scale and zero point. Both tell torch (`__torch_function__`) what to
# do with the operators they are given to:
#
# - a static operator is computed between a dequantization and a quantization, which become DequantizeLinear and
#   QuantizeLinear:         q(f(dq(x)))
# - a dynamic one quantizes its input by its own smallest and largest number, as fbgemm does, and multiplies integers:
#                           float(MatMulInteger(q(x), w)) · scale of x · scale of w + bias
#
# Source of truth: ATen's native/quantized/cpu: QuantUtils.h (`ChooseQuantizationParams`), qlinear_dynamic.cpp, and
# native/RNN.cpp for the recurrent layers, which quantize their input once and their state at each step.

_FUNCTIONS = {
    "quantize_per_tensor": quantize_per_tensor,
    "quantized_lstm": quantized_lstm,
    "quantized_gru": quantized_gru,
}


def _needs_quantized(error: Exception) -> bool:
    """torch.export wants to take the packed objects apart, and they do not let it; nor do quantized tensors."""
    return says(error, "packed object", "quantized tensor")


@capture_repair("quantized layers unpacked", after=_needs_quantized)
@contextlib.contextmanager
def quantized(target: Any) -> Iterator[bool]:
    """Stand-ins for every packed object and quantized tensor, and for functions that make or take quantized tensors."""
    modules = list(target.modules()) if isinstance(target, nn.Module) else []
    packed = [(m, k, v) for m in modules for k, v in vars(m).items() if _is_packed(v)]
    parts.part("quantized_decomposed")  # defines the operators; it takes a while
    library.file("own_operators")  # it registers matmul_integer
    register_structures()
    layers = vars(torch.ao.nn.quantized.dynamic.modules.rnn)
    saved = {name: getattr(torch, name) for name in _FUNCTIONS}
    stubs = [m for m in modules if isinstance(m, torch.ao.nn.quantized.Quantize)]
    buffers = [(m, dict(m._buffers)) for m in (*stubs, *(m for m, _, _ in packed))]
    for stub in stubs:  # their numbers are tensors, which a capture cannot look into
        for name in ("scale", "zero_point"):
            number = stub._buffers.pop(name)
            assert number is not None
            stub.__dict__[name] = number.item()
    for module, key, value in packed:
        setattr(module, key, _stand_in(value, module, key))
    for name, function in _FUNCTIONS.items():
        setattr(torch, name, function)
    layers["int"] = _int
    try:
        yield bool(packed)
    finally:
        del layers["int"]
        for name, function in saved.items():
            setattr(torch, name, function)
        for module, key, value in packed:
            setattr(module, key, value)
        for stub in stubs:
            del stub.__dict__["scale"], stub.__dict__["zero_point"]
        for module, own in buffers:
            module._buffers.clear()
            module._buffers.update(own)


def overflow(target: Any) -> str:
    """Why PyTorch's own answers may not be those of the model's numbers, if that can be.

    fbgemm adds up two products of 8 bits in 16. Its default settings keep to half the range of an input while they are
    calibrated, so that nothing overflows; numbers beyond what was seen then use the other half.
    """
    modules = target.modules() if isinstance(target, nn.Module) else ()
    if not parts.has("_ConvNd", "_is_vnni_supported"):
        return ""
    layers = (torch.ao.nn.quantized.Linear, parts.part("_ConvNd"))
    static = any(isinstance(m, layers) and ".dynamic" not in type(m).__module__ for m in modules)
    if not static or torch.backends.quantized.engine not in ("fbgemm", "x86") or parts.part("_is_vnni_supported")():
        return ""
    return (
        "likely PyTorch's own overflow: without VNNI, which this processor lacks, fbgemm adds up products of 8 bits in "
        "16, too few beyond the range that the model was calibrated for; calibrate it with larger inputs or for qnnpack"
    )


def _int(number: Any) -> Any:
    """The recurrent layers take this of the batch, which would fix it to the example's."""
    return number if isinstance(number, torch.SymInt) else int(number)


def _is_packed(value: Any) -> bool:
    return isinstance(value, torch.ScriptObject) or (isinstance(value, torch.Tensor) and value.is_quantized)


def _stand_in(packed: Any, holder: nn.Module, key: str) -> Overloads:
    if isinstance(packed, torch.Tensor):
        values = holder._buffers[f"{key}_values"] = packed.int_repr()
        return Quantized(values, packed.q_scale(), packed.q_zero_point())
    kind = packed._type().name()
    if kind == "CellParamsBase":
        return _cell(packed, holder)
    if kind == "EmbeddingPackedParamsBase":
        return _kept(holder, "weight", Packed(Weight.of(torch.ops.quantized.embedding_bag_unpack(packed)), None, {}))
    if kind == "LinearPackedParamsBase":
        return _linear(packed, holder, "weight")
    weight, bias = packed.unpack()
    names = ("stride", "padding", "dilation", "groups", "output_padding", "transpose")
    options = {n: getattr(packed, n)() for n in names}
    return _kept(holder, "weight", Packed(Weight.of(weight), bias, options))


def _linear(packed: Any, holder: nn.Module, name: str) -> Packed:
    weight, bias = torch.ops.quantized.linear_unpack(packed)
    return _kept(holder, name, Packed(Weight.of(weight) if weight.is_quantized else weight.half(), bias, {}))


def _cell(packed: Any, holder: nn.Module) -> Cell:
    (kind, _, _, numbers, layers), _ = packed.__getstate__()
    if not kind.startswith("quantized"):
        raise NotImplementedError(f"a recurrent layer of the kind {kind}")
    first, second = (_linear(p, holder, f"weight_{n}") for p, n in zip(layers, ("ih", "hh"), strict=True))
    return Cell(first, second, bool(numbers[0]) if numbers else False)


def _kept(holder: nn.Module, name: str, packed: Packed) -> Packed:
    """Buffers of the module for the time of the capture, so that the file's weights have names."""
    if isinstance(packed.weight, Weight):
        own = {"values": packed.weight.values, "scale": packed.weight.scale, "zero_point": packed.weight.zero_point}
    else:
        own = {"half": packed.weight}
    for part, tensor in {**own, "bias": packed.bias}.items():
        if tensor is not None:
            holder._buffers[f"{name}_{part}"] = tensor.detach()
    if packed.bias is not None:
        packed.bias = holder._buffers[f"{name}_bias"]
    if isinstance(packed.weight, Weight):
        buffers = {part: holder._buffers[f"{name}_{part}"] for part in own}
        packed.weight = dataclasses.replace(packed.weight, **buffers)  # type: ignore[arg-type]
    else:
        packed.weight = holder._buffers[f"{name}_half"]
    return packed


# Fake-quantizing modules: a model prepared for quantization-aware training that was not converted.
#
# They quantize and dequantize at once, in an operator that also observes, for which there is no translation. While a
# model is captured they call the two steps, which become QuantizeLinear and DequantizeLinear. With its observer on,
# such a module changes its own scale by what it is given; that is refused.
#
# Source of truth: torch/ao/quantization/fake_quantize.py.


@capture_repair("fake quantization in two steps")
@contextlib.contextmanager
def fake_quantizers(target: Any) -> Iterator[bool]:
    """Forwards of ours in all such modules; their switches are read now, as they are tensors."""
    own = _modules(target)
    if own:
        parts.part("quantized_decomposed")  # defines the operators; it takes a while
    for module in own:
        quantizes, observes = (bool(getattr(module, n)[0]) for n in ("fake_quant_enabled", "observer_enabled"))
        module.__dict__["forward"] = functools.partial(_forward, module, quantizes=quantizes, observes=observes)
    try:
        yield bool(own)
    finally:
        for module in own:
            del module.__dict__["forward"]


def _modules(target: Any) -> list[Any]:
    kinds = sys.modules.get("torch.ao.quantization.fake_quantize")
    if kinds is None or not isinstance(target, nn.Module):
        return []
    known = (kinds.FakeQuantize, kinds.FusedMovingAvgObsFakeQuantize)
    return [m for m in target.modules() if isinstance(m, known) and "forward" not in m.__dict__]


def _forward(module: Any, x: Tensor, *, quantizes: bool, observes: bool) -> Any:
    if not quantizes:
        return x
    if observes:
        raise NotImplementedError(
            "the observers of the fake-quantizing modules are on: the model changes its scales with each answer; "
            "turn them off: model.apply(torch.ao.quantization.disable_observer)"
        )
    low, high = module.activation_post_process.quant_min, module.activation_post_process.quant_max
    dtype = torch.uint8 if low >= 0 else torch.int8
    if low < torch.iinfo(dtype).min or high > torch.iinfo(dtype).max:
        raise NotImplementedError(f"a fake quantization to the range from {low} to {high}")
    ops = torch.ops.quantized_decomposed
    given: tuple[Any, ...] = (module.scale, module.zero_point, low, high, dtype)
    if module.is_per_channel:
        given = (module.scale, module.zero_point, module.ch_axis, low, high, dtype)
        return ops.dequantize_per_channel(ops.quantize_per_channel(x, *given), *given)
    return ops.dequantize_per_tensor.tensor(ops.quantize_per_tensor.tensor(x, *given), *given)
