"""Conditions that a size of one answers otherwise than larger ones.

torch.export takes it that a size which varies is never 1. A condition such as ``n == 1`` or ``n - 1 > 0`` is settled
by that, and no guard is noted. Here it is noticed, for conditions that the user's own code asks.
"""

from __future__ import annotations

from typing import Any

import sympy  # torch brings it along
import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from torchport.errors import CaptureError

_SMALLEST = 2  # torch's lower bound for a size that varies
# No public function says what a condition comes to at sizes that torch excludes.
_PRIVATE = ("_maybe_evaluate_static", "backed_var_to_val", "var_to_range")


def other_at_one(asked: torch.SymBool) -> bool:
    """Whether torch takes a condition on sizes for settled, and the answer is another where a size is 1."""
    env = getattr(asked.node, "shape_env", None)
    if env is None:  # a constant
        return False
    if not all(hasattr(env, name) for name in _PRIVATE):
        raise CaptureError(
            f"torch {torch.__version__} keeps what it knows of sizes elsewhere than torch 2.13",
            next_step="use the torch of constraints.txt",
        )
    condition = asked.node.expr
    sizes = [s for s in condition.free_symbols if s in env.backed_var_to_val and env.var_to_range[s].lower == _SMALLEST]
    if not sizes:
        return False
    settled = env._maybe_evaluate_static(condition)
    if settled is None:
        return False
    ones = {s: sympy.Integer(1) for s in sizes}
    small = [condition.xreplace(some) for some in (*({s: n} for s, n in ones.items()), ones)]
    answers = [env._maybe_evaluate_static(c) if c.free_symbols else c for c in small]
    return any(answer is not None and answer != settled for answer in answers)


def surely(condition: Any) -> bool:
    """Whether a condition on sizes holds whatever they are, one included."""
    return statically_known_true(condition) and not (isinstance(condition, torch.SymBool) and other_at_one(condition))
