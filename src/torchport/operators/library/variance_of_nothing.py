"""aten::var, aten::std, aten::var_mean, aten::std_mean of no numbers, or of no more than the correction

    var = sum((x - mean)²) / max(n - correction, 0), mean = sum(x) / n

Both are NaN, or infinite, where PyTorch divides by zero. ONNX Runtime's mean of nothing is zero.

Source of truth: PyTorch's answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torchport.operators.composing import only_where
from torchport.operators.registering import composes


def variance(root: bool, with_mean: bool, arguments: str) -> Callable[..., Any]:
    """The composition for one overload: that without axes, with `dim`, or with `correction`."""

    def result(x: Any, dim: Sequence[int] | None, correction: float, keepdim: bool) -> Any:
        axes = list(dim) if dim else list(range(x.dim()))
        n = _count(x, dim)
        mean = x.sum(axes, keepdim=True) / n
        var = (x - mean).square().sum(axes, keepdim=keepdim) / max(n - correction, 0.0)
        spread = var.sqrt() if root else var
        return (spread, mean if keepdim else x.sum(axes) / n) if with_mean else spread

    def applies(x: Any, dim: Sequence[int] | None, correction: float, keepdim: bool) -> bool:
        n = _count(x, dim)
        return isinstance(n, int) and n <= correction

    def plain(self: Any, unbiased: bool = True) -> Any:
        return self, None, float(unbiased), False

    def along(self: Any, dim: Any, unbiased: bool = True, keepdim: bool = False) -> Any:
        return self, dim, float(unbiased), keepdim

    def corrected(self: Any, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Any:
        return self, dim, 1.0 if correction is None else float(correction), keepdim

    forms: dict[str, Callable[..., Any]] = {"default": plain, "dim": along, "correction": corrected}
    read = forms[arguments]

    @only_where(lambda *args, **kwargs: applies(*read(*args, **kwargs)))
    def composition(*args: Any, **kwargs: Any) -> Any:
        return result(*read(*args, **kwargs))

    return composition


def _count(x: Any, dim: Sequence[int] | None) -> Any:
    return math.prod(x.shape[axis] for axis in dim) if dim and x.dim() else math.prod(x.shape)


for _name in ("var", "std", "var_mean", "std_mean"):
    for _overload in ("default", "dim", "correction"):
        composes(f"aten::{_name}.{_overload}")(variance(_name.startswith("std"), _name.endswith("_mean"), _overload))
