"""aten::linspace, aten::logspace, with a number of steps that varies

    output[i] = start + i (end - start) / (steps - 1), from the nearer end; logspace: the base to that power

One step is the start alone. Torch's own ask whether there is but one step, and divide by zero where nothing answers.

Source of truth: ATen's native/RangeFactories.cpp and native/cpu/RangeFactoriesKernel.cpp.
"""

from __future__ import annotations

from typing import Any

import torch

from torchport.operators.composing import only_where
from torchport.operators.registering import composes


def is_open(start: Any = None, end: Any = None, steps: Any = None, *_: Any, **__: Any) -> bool:
    """Whether only the running model knows the number of steps."""
    return isinstance(steps, torch.SymInt)


def linspace(start: Any, end: Any, steps: Any, *, dtype: Any = None, **_: Any) -> Any:
    dtype = dtype or _type_of(start, end)
    return _spaced(start, end, steps, dtype).to(dtype)


def logspace(start: Any, end: Any, steps: Any, base: float = 10.0, *, dtype: Any = None, **_: Any) -> Any:
    dtype = dtype or _type_of(start, end)
    exponents = _spaced(start, end, steps, dtype)
    return torch.pow(base, exponents).to(dtype)


def _type_of(start: Any, end: Any) -> torch.dtype:
    given = [v.dtype for v in (start, end) if isinstance(v, torch.Tensor) and v.is_floating_point()]
    return given[0] if given else torch.get_default_dtype()


def _spaced(start: Any, end: Any, steps: Any, dtype: torch.dtype) -> Any:
    """In 64 bits; the ends as they are in that type."""
    first, last = (_number(v, dtype) for v in (start, end))
    place = torch.arange(steps)
    count = torch.full((), steps, dtype=torch.int64)
    step = (last - first) / (count - 1).clamp(min=1)
    return torch.where(place < (count + 1) // 2, first + step * place, last - step * (count - 1 - place))


def _number(value: Any, dtype: torch.dtype) -> Any:
    tensor = value if isinstance(value, torch.Tensor) else torch.full((), value, dtype=torch.float64)
    return tensor.to(dtype).to(torch.float64)


for _overload in ("default", "Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor"):
    composes(f"aten::linspace.{_overload}")(only_where(is_open)(linspace))
    composes(f"aten::logspace.{_overload}")(only_where(is_open)(logspace))
