"""What torchport ships where torch's own translation is missing or wrong. One file an operator, or a family of them.

A file registers its functions by the names of the operators (operators/registration.py): those that build ONNX nodes
with `translates`, those in plain PyTorch with `composes`, those that repairs call with `replaces`. All files are found
by themselves. An operator that this torch lacks is left out, and so is a file that does not load; `left_out()` lists
both.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

from torchport.errors import MissingPartError
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
    """Return the translations and compositions of the files that load, also for operators that are not there."""
    return tuple(entry for entry in _registered() if entry.kind != "repair")


def replacements() -> tuple[Registered, ...]:
    """Return the functions of the files that load for repairs to call in the place of torch's own."""
    return tuple(entry for entry in _registered() if entry.kind == "repair")


def _registered() -> Iterator[Registered]:
    modules, _ = _loaded(tuple(__path__))
    return (entry for module in modules for entry in registration.registered_in(module))


def broken_files() -> tuple[LeftOut, ...]:
    """Return the files that do not load, with the reason."""
    return _loaded(tuple(__path__))[1]


def left_out() -> tuple[LeftOut, ...]:
    """Return the files that do not load and the operators that are not there, each with its reason."""
    return (*broken_files(), *registration.left_out(registered()))


def file(name: str) -> Any:
    """Return a file of the library, for who needs more of it than its registrations.

    Raises:
        MissingPartError: it does not load.
    """
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except Exception as error:
        path = f"operators/library/{name}.py"
        raise MissingPartError(
            f"feature off: operators of {path}; it does not load: {_reason(error)}",
            part=path,
            next_step="pip install --force-reinstall torchport, with the versions in constraints.txt",
        ) from error


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
