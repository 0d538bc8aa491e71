"""The user's plain objects that a function can reach: what it finds around it, and what is handed to it."""

from __future__ import annotations

import contextlib
import functools
import sys
from types import FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import torch

from torchport.capture.rewrite.rows import OpenList

_OWN = __name__.rpartition(".")[0]
_NOT_THE_USERS = {"torch", "torchport", "builtins", *sys.stdlib_module_names}


def parts_of(value: Any) -> list[Any]:
    """What a container holds, or a function finds around it. Nothing is made anew: ids stay those of living objects."""
    if isinstance(value, functools.partial):
        return [value.func, value.args]
    if isinstance(value, FunctionType):
        found = []
        for cell in value.__closure__ or ():
            with contextlib.suppress(ValueError):  # a variable that has no value yet
                found.append(cell.cell_contents)
        return found
    if isinstance(value, (list, tuple)):
        return list(value)
    return list(value.values()) if isinstance(value, dict) else []


def plain_objects(*values: Any) -> list[Any]:
    """Instances of the user's classes, but for tensors and modules."""
    seen: dict[int, Any] = {}
    found: list[Any] = []

    def look(value: Any) -> None:
        if isinstance(value, (torch.Tensor, OpenList, str, type, ModuleType)) or id(value) in seen:
            return
        seen[id(value)] = value
        parts = parts_of(value)
        for part in parts:
            look(part)
        if isinstance(value, MethodType):
            look(value.__self__)
        elif isinstance(value, torch.nn.Module):
            for name, item in vars(value).items():
                if not name.startswith("_"):
                    look(item)
        elif not parts and _is_users(type(value)) and hasattr(value, "__dict__"):
            found.append(value)
            look(vars(value))
        elif type(value).__module__.startswith(_OWN):
            look(vars(value))

    for value in values:
        look(value)
    return found


def _is_users(kind: type) -> bool:
    return kind is SimpleNamespace or kind.__module__.partition(".")[0] not in _NOT_THE_USERS
