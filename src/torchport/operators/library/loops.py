"""A loop inside a composition, for what is computed step by step: an ONNX Loop, however many steps there are.

Written out, a factorization of a 12 x 12 matrix takes the exporter half a minute; as a loop it takes as long for any
side, and the side may vary. A step sees whole matrices and its own number, and chooses what it changes by comparing
places with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def repeated(
    count: Any,
    step: Callable[..., tuple[Tensor, ...]],
    carried: tuple[Tensor, ...],
    fixed: tuple[Tensor, ...] = (),
) -> tuple[Tensor, ...]:
    """What is carried after `count` times carried = step(k, *carried, *fixed); k is a tensor, 0 at first.

    The count may be a symbolic size. A step must take its tensors from its arguments, not from the function around it.
    """
    if isinstance(count, int) and count == 0:
        return carried
    device = carried[0].device
    limit = torch.full((), count, dtype=torch.int64, device=device)

    def goes_on(k: Tensor, *rest: Tensor) -> Tensor:
        return k < rest[-1]

    def body(k: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        return k + 1, *(tensor.contiguous() for tensor in step(k, *rest[:-1]))

    start = (torch.zeros((), dtype=torch.int64, device=device), *(_fresh(tensor) for tensor in carried))
    loop: Any = torch.ops.higher_order.while_loop
    return tuple(loop(goes_on, body, start, (*(_fresh(tensor) for tensor in fixed), limit))[1:])


def _fresh(tensor: Tensor) -> Tensor:
    """A copy without gaps: what goes in must lie in memory as what comes out, and strides have no translation."""
    return tensor.clone(memory_format=torch.contiguous_format)


def row(matrix: Tensor, k: Tensor) -> Tensor:
    """Row k, as a matrix of one row."""
    return matrix.index_select(-2, k.reshape(1))


def column(matrix: Tensor, k: Tensor) -> Tensor:
    """Column k, as a matrix of one column; of a vector, entry k."""
    return matrix.index_select(-1, k.reshape(1))


def places(tensor: Tensor, axis: int) -> Tensor:
    """0, 1, 2, ... along an axis, to be compared with k: -1 for columns, -2 for rows."""
    numbers = torch.arange(tensor.shape[axis], device=tensor.device)
    return numbers if axis == -1 else numbers.unsqueeze(-1)
