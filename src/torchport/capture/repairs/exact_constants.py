"""The optimizer behind torch.onnx takes 1e-8 for zero: `x / (norm + 1e-8)` loses its guard, and zeros answer NaN.

Its rules drop `x + c` and `x * c` where c is zero or one, and compare with a tolerance of 1e-8 and 1e-5. Helium's
RMSNorm is such a model: NaN for the padding token, right for every other. While a program is translated, zero and one
are told from other numbers exactly; the tolerance stays for constants such as √2, which rules compare too.

Source of truth: `_match_constant` in onnxscript/rewriter/_matcher.py, the rules in onnxscript/rewriter/rules/common.
"""

from __future__ import annotations

import contextlib
import math
import types
from collections.abc import Iterator
from typing import Any

from onnxscript.rewriter import _matcher as matcher_module

_matcher: Any = matcher_module


@contextlib.contextmanager
def exact_constants() -> Iterator[None]:
    own = _matcher.math
    _matcher.math = _Exact()
    try:
        yield
    finally:
        _matcher.math = own


class _Exact(types.ModuleType):
    """`math`, whose `isclose` knows zero and one from what is near them."""

    def __init__(self) -> None:
        super().__init__("math")

    def __getattr__(self, name: str) -> Any:
        return getattr(math, name)

    @staticmethod
    def isclose(found: float, wanted: float, **tolerances: float) -> bool:
        return found == wanted if wanted in (0, 1) else math.isclose(found, wanted, **tolerances)
