"""aten::linalg_vander: the powers xᵢʲ of every number, j = 0 ... N-1.

Torch breaks it up into a product that has no translation for one number; powers have one, and N may be a size that
varies. Whole numbers give int64, as in PyTorch.

Source of truth: PyTorch's answers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchport.operators.registering import composes


@composes("aten::linalg_vander.default")
def vander(numbers: Tensor, *, N: Any = None) -> Tensor:  # noqa: N803 - PyTorch's name; a size, which may be symbolic
    numbers = numbers if numbers.is_floating_point() else numbers.to(torch.int64)
    numbers = numbers if numbers.dim() else numbers.unsqueeze(0)  # one number is a vector of one
    count = numbers.shape[-1] if N is None else N
    return numbers.unsqueeze(-1) ** torch.arange(count, dtype=numbers.dtype, device=numbers.device)
