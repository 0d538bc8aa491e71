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


def plain_objects(*values: Any) -> list[Any]:
    """Instances of the user's classes, but for tensors and modules."""
    seen: dict[int, Any] = {}
    found: list[Any] = []

    def look(value: Any) -> None:
        if isinstance(value, (torch.Tensor, OpenList, str, type, ModuleType)) or id(value) in seen:
            return
        seen[id(value)] = value
        if isinstance(value, functools.partial):
            look(value.func)
            look(value.args)
        elif isinstance(value, MethodType):
            look(value.__self__)
        elif isinstance(value, FunctionType):
            for cell in value.__closure__ or ():
                with contextlib.suppress(ValueError):  # a variable that has no value yet
                    look(cell.cell_contents)
        elif isinstance(value, (list, tuple)):
            for item in value:
                look(item)
        elif isinstance(value, dict):
            for item in value.values():
                look(item)
        elif isinstance(value, torch.nn.Module):
            for name, item in vars(value).items():
                if not name.startswith("_"):
                    look(item)
        elif _is_users(type(value)) and hasattr(value, "__dict__"):
            found.append(value)
            look(vars(value))
        elif type(value).__module__.startswith(_OWN):
            look(vars(value))

    for value in values:
        look(value)
    return found


def _is_users(kind: type) -> bool:
    return kind is SimpleNamespace or kind.__module__.partition(".")[0] not in _NOT_THE_USERS
