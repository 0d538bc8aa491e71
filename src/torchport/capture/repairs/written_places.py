"""`x[i] = value` with an `i` that is a tensor of one number, `x[:, n] = value` with an `n` that is a symbolic size.

torch.export asks for the number's value there, or takes no symbol at all. Reading it handles; for writing, a place that
a tensor says becomes a list of one place, and one that a size says a view to write to.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from torchport.capture.blame import line_of_error
from torchport.capture.repairs.repair import capture_repair

_WRITES = re.compile(r"\]\s*(//|\*\*|[-+*/@%&|^])?=(?!=)")


def _needs_written_places(error: Exception) -> bool:
    text = str(error)
    return ("data-dependent" in text or "got SymInt" in text) and _WRITES.search(line_of_error(error)) is not None


@capture_repair("writing at a place a tensor or a size says", after=_needs_written_places)
@contextlib.contextmanager
def written_places(target: Any) -> Iterator[bool]:
    with _Places():
        yield True


class _Places(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.Tensor.__setitem__:
            return func(*args, **(kwargs or {}))
        tensor, index, value = args
        parts = index if isinstance(index, tuple) else (index,)
        if any(isinstance(p, torch.SymInt) for p in parts) and not any(isinstance(p, torch.Tensor) for p in parts):
            _view(tensor, parts).copy_(value if isinstance(value, torch.Tensor) else torch.full((), value))
            return None
        return func(tensor, tuple(map(_listed, parts)) if isinstance(index, tuple) else _listed(index), value)


def _listed(index: Any) -> Any:
    """A single place as a list of one."""
    single = isinstance(index, torch.Tensor) and index.dim() == 0 and index.dtype in (torch.int64, torch.int32)
    return index.reshape(1) if single else index


def _view(tensor: torch.Tensor, parts: tuple[Any, ...]) -> torch.Tensor:
    """`tensor[parts]` by numbers, slices, None and `...`, step by step."""
    axis = 0
    for number, part in enumerate(parts):
        if part is Ellipsis:
            axis = tensor.dim() - sum(p is not None for p in parts[number + 1 :])
        elif part is None:
            tensor = tensor.unsqueeze(axis)
            axis += 1
        elif isinstance(part, slice):
            tensor = torch.ops.aten.slice.Tensor(tensor, axis, part.start, part.stop, part.step or 1)
            axis += 1
        else:
            tensor = tensor.select(axis, part)
    return tensor
