"""`one_hot(x)` without a number of classes: one more than the largest in `x`, which torch.export does not take.

Compared with the numbers up to that one it is a shape that comes from a value, like any other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from torchport.capture.blame import line_of_error
from torchport.capture.repairs.repair import capture_repair


def _needs_one_hot(error: Exception) -> bool:
    return "data-dependent" in str(error) and "one_hot" in line_of_error(error)


@capture_repair("one_hot with as many classes as the values say", after=_needs_one_hot)
@contextlib.contextmanager
def one_hot(target: Any) -> Iterator[bool]:
    with _OneHot():
        yield True


class _OneHot(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not torch.nn.functional.one_hot or _classes(*args, **kwargs) != -1:
            return func(*args, **kwargs)
        numbers = args[0] if args else kwargs.get("tensor", kwargs.get("input"))
        classes = numbers.max().item() + 1
        torch._check(classes >= 0)
        return (numbers.unsqueeze(-1) == torch.arange(classes)).to(torch.int64)


def _classes(tensor: Any = None, num_classes: Any = -1, **_: Any) -> Any:
    return num_classes
