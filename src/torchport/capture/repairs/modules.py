"""Modules that a capture cannot take as they are: inner wrappers, casts in forward, no_grad beside a branch."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from torchport.capture.models import is_wrapper, unwrapped
from torchport.capture.repairs.repair import capture_repair
from torchport.torch_compat.error_texts import says
from torchport.torch_compat.parts import patched

# DataParallel and DistributedDataParallel around a part of a model.
#
# Around the whole they are taken off before anything else (wrappers.py). Inside, they would spread the work over
# devices and processes, which no capture can follow; the part itself stands in their place while the model is captured.

_PARALLEL = (nn.DataParallel, DistributedDataParallel)


@capture_repair("inner wrappers taken off")
@contextlib.contextmanager
def inner_wrappers(target: Any) -> Iterator[bool]:
    modules = list(target.modules()) if isinstance(target, nn.Module) else []
    parts = [(m, name, part) for m in modules for name, part in m._modules.items() if isinstance(part, _PARALLEL)]
    wrapped = [(m, name, part) for m, name, part in parts if is_wrapper(part)]
    for module, name, part in wrapped:
        module._modules[name] = unwrapped(part)
    try:
        yield bool(wrapped)
    finally:
        for module, name, part in wrapped:
            module._modules[name] = part


# `self.router = self.router.to(self.dtype)` in forward, which torch.export cannot swap the weights of.
#
# The model was run before it is captured, so its layers have the type by now and the line has nothing to do. In a
# capture `Module.to` swaps each weight for itself all the same, and that fails.


def _needs_cast_layers(error: Exception) -> bool:
    return says(error, "weights not swapped")


@capture_repair("layers that are cast while the model runs", after=_needs_cast_layers)
@contextlib.contextmanager
def cast_layers(target: Any) -> Iterator[bool]:
    with patched("Module._apply", _unless_cast):
        yield True


def _unless_cast(original: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    def apply(self: nn.Module, fn: Callable[[Any], Any], recurse: bool = True) -> nn.Module:
        tensors = itertools.chain(self.parameters(recurse), self.buffers(recurse))
        return self if all(fn(tensor) is tensor for tensor in tensors) else original(self, fn, recurse)

    return apply


# `with torch.no_grad():` beside a branch or a loop: torch.export loses the branch's graph as it groups what is in it.
#
# A capture computes no gradients, so the switches have nothing to do and need not be recorded.


def _needs_gradient_switches(error: Exception) -> bool:
    return says(error, "graph of branch lost")


@capture_repair("switching gradients on and off beside a branch", after=_needs_gradient_switches)
@contextlib.contextmanager
def gradient_switches(target: Any) -> Iterator[bool]:
    with patched("_set_grad_enabled", lambda own: lambda mode: None):
        yield True
