"""capture.ones."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import FrameType

import torch

from torchport.capture.blame import is_user_file, line_of_frame, site_of_stack
from torchport.capture.guards import Guard
from torchport.torch_compat.shape_env import other_at_one


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
