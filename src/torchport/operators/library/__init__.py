"""What torchport ships where torch's own translation is missing or wrong. One file an operator, or a family of them.

A file registers its functions by the names of the operators: those that build ONNX nodes with `translates`, those in
plain PyTorch with `composes` (operators/registering.py). All files are found by themselves. An operator that this torch
lacks is left out, and so is a file that does not load; `left_out()` lists both.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

from torchport.operators import registration
from torchport.operators.registration import Kind, LeftOut, Registered

Functions = dict[Any, Callable[..., Any]]


def translations() -> Functions:
    """Torch operator to translation, as `torch.onnx.export` takes it in its custom translation table."""
    return _found("translation")


def compositions() -> Functions:
    """Torch operator to a PyTorch function of operators that have translations."""
    return _found("composition")


def registered() -> tuple[Registered, ...]:
    """Return what the files that load have registered, for operators that are there and for those that are not."""
    modules, _ = _loaded(tuple(__path__))
    return tuple(entry for module in modules for entry in registration.registered_in(module))


def left_out() -> tuple[LeftOut, ...]:
    """Return the files that do not load and the operators that are not there, each with its reason."""
    _, broken = _loaded(tuple(__path__))
    return (*broken, *registration.left_out(registered()))


def _found(kind: Kind) -> Functions:
    return registration.found(entry for entry in registered() if entry.kind == kind)


@functools.cache
def _loaded(path: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[LeftOut, ...]]:
    """Import every file of the folder; return the modules in alphabetical order, and the files that do not load."""
    modules: list[str] = []
    broken: list[LeftOut] = []
    for module in pkgutil.iter_modules(path):
        try:
            importlib.import_module(f"{__name__}.{module.name}")
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one file, the others stay; doctor lists it
            broken.append(LeftOut("file", f"operators/library/{module.name}.py", _reason(error)))
        else:
            modules.append(f"{__name__}.{module.name}")
    return tuple(modules), tuple(broken)


def _reason(error: Exception) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
