"""Operators that fix a size, or leave a graph without a value, given in others that do not.

- Pooling along one axis: torch's kernel reads that size as a plain number.
- A number written to places of a tensor: inside a branch torch makes a constant of it that has no value.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class OpenSizes(TorchFunctionMode):
    """Takes the place of such operators while the model runs."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.max_pool1d, torch.nn.functional.max_pool1d) and not kwargs.get("return_indices"):
            return _max_pool1d(*args, **kwargs)
        if func is torch.Tensor.__setitem__ and isinstance(args[2], (int, float)):
            tensor, places, number = args
            return func(tensor, places, torch.full((), number, dtype=tensor.dtype))
        return func(*args, **kwargs)


def _max_pool1d(
    input: torch.Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> torch.Tensor:
    """Of one axis as of two, the first of size one."""
    size, move, pad, apart = map(_number, (kernel_size, stride or kernel_size, padding, dilation))
    pooled = torch.max_pool2d(
        input.unsqueeze(-2), (1, size), (1, move), (0, pad), dilation=(1, apart), ceil_mode=ceil_mode
    )
    return pooled.squeeze(-2)


def _number(given: Any) -> Any:
    return given[0] if isinstance(given, (list, tuple)) else given
