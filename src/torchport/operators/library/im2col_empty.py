"""aten::im2col of a batch of none

    output = nothing, in the shape of what there would be

Torch's translation ends in a Reshape with a size left open, which ONNX does not allow where another one is zero.

Source of truth: PyTorch's answers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torchport.operators.composing import only_where
from torchport.operators.registering import composes


@composes("aten::im2col.default")
@only_where(
    lambda self, kernel_size, dilation, padding, stride: (
        self.dim() == 4 and isinstance(self.shape[0], int) and self.shape[0] == 0
    )
)
def im2col(
    self: Any, kernel_size: Sequence[int], dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int]
) -> Any:
    each = zip(self.shape[-2:], kernel_size, dilation, padding, stride, strict=True)
    windows = [(size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, d, p, s in each]
    return self.new_zeros((0, self.shape[1] * math.prod(kernel_size), math.prod(windows)))
