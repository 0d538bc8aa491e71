"""`x[i] = value` with an `i` that is a tensor of one number.

torch.export asks for the number's value there, and stops. Reading `x[i]` it handles; for writing, the same place as a
tensor of one place is one it does not have to look at.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from torchport.capture.blame import line_of_error

NAME = "writing at a place a tensor says"
_WRITES = re.compile(r"\]\s*(//|\*\*|[-+*/@%&|^])?=(?!=)")


def knows(error: Exception) -> bool:
    return "data-dependent" in str(error) and _WRITES.search(line_of_error(error)) is not None


@contextlib.contextmanager
def repaired(target: Any) -> Iterator[bool]:
    with _Places():
        yield True


class _Places(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__setitem__:
            tensor, index, value = args
            index = tuple(map(_listed, index)) if isinstance(index, tuple) else _listed(index)
            return func(tensor, index, value)
        return func(*args, **(kwargs or {}))


def _listed(index: Any) -> Any:
    """A single place as a list of one."""
    single = isinstance(index, torch.Tensor) and index.dim() == 0 and index.dtype in (torch.int64, torch.int32)
    return index.reshape(1) if single else index
