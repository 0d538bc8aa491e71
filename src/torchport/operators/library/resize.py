"""aten::resize

    output = the first numbers of the flat input, in another shape

To more numbers than there are is refused: nothing was written to the rest.

Source of truth: ATen's native/Resize.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from onnxscript import opset18

from torchport.operators.registering import translates

op: Any = opset18  # its annotations know eager tensors only, not a graph's values


@translates("aten::resize.default")
def resize(self: Any, size: Sequence[Any], memory_format: Any = None) -> Any:
    """Translate one call; PyTorch's resize_ and resize_as_ are taken apart into it."""
    if not all(isinstance(n, int) for n in (*self.shape, *size)):
        raise NotImplementedError("aten::resize with a size that varies; use reshape")
    count = math.prod(size)
    if count > math.prod(self.shape):
        raise NotImplementedError("aten::resize to more numbers than there are; use torch.nn.functional.pad")
    flat = op.Reshape(self, op.Constant(value_ints=[-1]))
    first = op.Slice(flat, op.Constant(value_ints=[0]), op.Constant(value_ints=[count]))
    return op.Reshape(first, op.Constant(value_ints=list(size)), allowzero=1)
