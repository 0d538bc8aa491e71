"""Fake-quantizing modules: a model prepared for quantization-aware training that was not converted.

They quantize and dequantize at once, in an operator that also observes, for which there is no translation. While a
model is captured they call the two steps, which become QuantizeLinear and DequantizeLinear. With its observer on, such
a module changes its own scale by what it is given; that is refused.

Source of truth: torch/ao/quantization/fake_quantize.py.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from torchport.capture.repairs.repair import capture_repair


@capture_repair("fake quantization in two steps")
@contextlib.contextmanager
def fake_quantizers(target: Any) -> Iterator[bool]:
    """Forwards of ours in all such modules; their switches are read now, as they are tensors."""
    own = _modules(target)
    if own:
        importlib.import_module("torch.ao.quantization.fx._decomposed")  # defines the operators; it takes a while
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
