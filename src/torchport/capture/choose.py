"""Which routes there are, and in which order to try them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from torchport.capture.routes.base import Route
from torchport.errors import OptionError

ROUTES = ("export", "rewrite", "script", "trace")


def order(target: Any, route: str) -> tuple[str, ...]:
    """The routes to try for a model: the one asked for, or all that make sense, the surest first.

    `export` keeps most and blames best; `rewrite` is `export` with control flow rewritten; `script` keeps control flow
    too, of code TorchScript understands; `trace` takes anything, and is trusted least.
    """
    if route not in (*ROUTES, "auto"):
        raise OptionError(f"there is no route '{route}'", next_step=f"use auto, {', '.join(ROUTES)}")
    possible = _possible(target)
    if route == "auto":
        return possible
    if route not in possible:
        raise OptionError(
            f"route '{route}' cannot take {_kind(target)}", next_step=f"use route {' or '.join(possible)}"
        )
    return (route,)


def _possible(target: Any) -> tuple[str, ...]:
    if isinstance(target, torch.export.ExportedProgram):
        return ("export",)
    if isinstance(target, (torch.jit.ScriptModule, torch.jit.ScriptFunction)):
        return ("script",)
    return ROUTES


def _kind(target: Any) -> str:
    return "an ExportedProgram" if isinstance(target, torch.export.ExportedProgram) else "a TorchScript module"


def load(route: str) -> Route:
    """The route's function; its module is imported only when its turn comes."""
    return import_module(f"torchport.capture.routes.{route}").capture
