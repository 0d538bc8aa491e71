"""`self.router = self.router.to(self.dtype)` in forward, which torch.export cannot swap the weights of.

The model was run before it is captured, so its layers have the type by now and the line has nothing to do. In a capture
`Module.to` swaps each weight for itself all the same, and that fails.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torchport.capture.repairs.repair import capture_repair


def _needs_cast_layers(error: Exception) -> bool:
    return "_apply(): Couldn't swap" in str(error)


@capture_repair("layers that are cast while the model runs", after=_needs_cast_layers)
@contextlib.contextmanager
def cast_layers(target: Any) -> Iterator[bool]:
    original = torch.nn.Module._apply

    def apply(self: torch.nn.Module, fn: Callable[[Any], Any], recurse: bool = True) -> torch.nn.Module:
        tensors = itertools.chain(self.parameters(recurse), self.buffers(recurse))
        return self if all(fn(tensor) is tensor for tensor in tensors) else original(self, fn, recurse)

    torch.nn.Module._apply = apply  # type: ignore[method-assign]
    try:
        yield True
    finally:
        torch.nn.Module._apply = original  # type: ignore[method-assign]
