"""Sizes after an `if` on a size: padding to a multiple, and taking it off again.

    n = -length % 4
    if n > 0:
        x = functional.pad(x, (0, n))

One side has length + n, the other length; but there n is zero, and length + n is right on both. Without this the size
would be one that nothing is known of, and every later view a question without an answer.
"""

from __future__ import annotations

from typing import Any

import sympy  # torch brings it along
import torch

from torchport.capture.rewrite.lifting import unrecorded
from torchport.torch_compat.higher_order import fake_mode, symbols_of


def tell_sizes(test: Any, result: torch.Tensor, left: Any, right: Any, known: set[Any]) -> None:
    """Tell torch the sizes of what one of two branches gives, where one formula holds for both.

    Args:
        test: what was asked.
        result: the tensor after the branches.
        left: what the first branch gave, which is taken if the test holds.
        right: what the second gave.
        known: the sizes there was a name for before the branches.
    """
    number, zero_first = _zero_on_one_side(test)
    if number is None or not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
        return
    for size, a, b in zip(result.shape, left.shape, right.shape, strict=True):
        formula = b if zero_first else a  # of the side on which the number is not zero
        open_ = isinstance(size, torch.SymInt) and symbols_of(size) - known and symbols_of(formula) <= known
        if open_ and _without(a, number) == _without(b, number):
            with unrecorded():
                torch._check(size == formula)


def _zero_on_one_side(test: Any) -> tuple[Any, bool]:
    """A number that is zero on one side of the test, and whether that is the first side; None if there is none."""
    if not isinstance(test, (torch.SymBool, torch.SymInt)):
        return None, False
    asked = test.node.expr
    if isinstance(test, torch.SymInt):
        return asked, False
    if not isinstance(asked, sympy.core.relational.Relational) or 0 not in asked.args:
        return None, False
    number = asked.rhs if asked.lhs == 0 else asked.lhs
    if isinstance(asked, (sympy.Ne, sympy.Eq)):
        return number, isinstance(asked, sympy.Eq)
    lower = fake_mode().shape_env.bound_sympy(number).lower
    above = sympy.Gt if asked.rhs == 0 else sympy.Lt  # number > 0, or 0 < number
    return (number, False) if lower >= 0 and isinstance(asked, above) else (None, False)


def _without(size: Any, number: Any) -> Any:
    """A size where the number is zero."""
    expression = size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)
    return sympy.expand(expression.subs(number, 0))
