"""A `view` of a tensor whose strides are others in the capture than in the model.

`nn.MultiheadAttention(...)(x, x, x)[0].view(b, -1)` is fine in PyTorch, whose fast path lays its answer out row by
row. torch.export takes another path with another layout, and then says "Cannot view a tensor with shape ... and
strides ...". ONNX has no strides: a reshape says the same, and is never refused.

The same words come from torch.onnx.export for T5, BEiT and every model with a learned attention bias: it runs the
program again with gradients, which choose another kernel. torchport captures and translates without gradients.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from torchport.capture.repairs.repair import capture_repair


def _needs_views_as_reshapes(error: Exception) -> bool:
    # torch's fake tensors say the first, its kernels the second
    return "Cannot view a tensor" in str(error) or "view size is not compatible" in str(error)


@capture_repair("views as reshapes", after=_needs_views_as_reshapes)
@contextlib.contextmanager
def views_as_reshapes(target: Any) -> Iterator[bool]:
    with _Reshapes():
        yield True


class _Reshapes(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.view and not _is_dtype(args, kwargs):
            return torch.Tensor.reshape(*args, *kwargs.values())
        if func is torch.Tensor.view_as:
            return torch.Tensor.reshape_as(*args, **kwargs)
        return func(*args, **kwargs)


def _is_dtype(args: Any, kwargs: Any) -> bool:
    """`x.view(torch.int32)` reads the same bytes as another type, and is no matter of shape."""
    return any(isinstance(given, torch.dtype) for given in (*args, *kwargs.values()))
