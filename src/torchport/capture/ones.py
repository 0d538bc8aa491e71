"""Conditions that a size of one answers otherwise than larger ones.

torch.export takes it that a size which varies is never 1. A condition such as ``n == 1`` or ``n - 1 > 0`` is settled
by that, and no guard is noted. Here it is noticed, for conditions that the user's own code asks.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import sympy  # torch brings it along
import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from torchport.capture.blame import is_user_file, line_of_frame, site_of_stack
from torchport.capture.guards import Guard
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


@contextlib.contextmanager
def watch_ones() -> Iterator[list[Guard]]:
    """Collect such conditions as guards, each with the user's line, while a model is captured."""
    found: list[Guard] = []
    plain = torch.SymBool.__bool__

    def ask(asked: torch.SymBool) -> bool:
        answer = plain(asked)
        frame = _asking(sys._getframe(1))
        if is_user_file(frame.f_code.co_filename) and other_at_one(asked):
            text = str(asked.node.expr) if answer else f"Not({asked.node.expr})"
            guard = Guard(text, line_of_frame(frame), site_of_stack(frame))
            if guard not in found:
                found.append(guard)
        return answer

    torch.SymBool.__bool__ = ask  # type: ignore[method-assign]
    try:
        yield found
    finally:
        torch.SymBool.__bool__ = plain  # type: ignore[method-assign]


def _asking(frame: FrameType) -> FrameType:
    """Where a condition is asked; the truth of a number is one that torch asks for it."""
    return frame.f_back if frame.f_code is torch.SymInt.__bool__.__code__ and frame.f_back else frame
