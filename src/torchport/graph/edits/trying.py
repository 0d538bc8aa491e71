"""Make a change only if the model is sound after it."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from torchport.errors import InputError
from torchport.inspection.lint.linter import lint

Undo = Callable[[], None]


def rehearsed(model: ir.Model, change: Callable[[ir.Model], int]) -> int:
    """Make a change on a copy first, weights shared, so that one which is refused leaves the model as it was."""
    change(model.clone())
    return change(model)


def attempt(model: ir.Model, change: Callable[[], Undo], what: str) -> None:
    """Make a change if the model is as sound after it as before; else take it back and say why.

    Args:
        model: what is changed.
        change: makes the change, and gives back what undoes it.
        what: what cannot be done, for the error.
    """
    undo = change()
    after = _errors(model)
    if not after:
        return
    undo()
    before = _errors(model)
    new = [text for text in after if text not in before]
    if new:
        raise InputError(f"{what}: {new[0]}", next_step="nothing was changed")
    change()


def new_errors(before: ir.Model, after: ir.Model) -> list[str]:
    """What is wrong with a model that was not wrong with another."""
    found = _errors(after)
    old = _errors(before) if found else []
    return [text for text in found if text not in old]


def _errors(model: ir.Model) -> list[str]:
    return [fault.message for fault in lint(model) if fault.severity == "error"]
