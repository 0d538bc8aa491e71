"""Translations and compositions of torchport's own, registered by the name of the operator.

    @composes("aten::linalg_qr.default")       a plain PyTorch function of operators that have translations
    @translates("aten::log1p.default")         a function that builds ONNX nodes
    @replaces("torch.linalg.lstsq")            a function that a repair calls in the place of torch's own

Operators come and go between releases of torch. A name is looked up when it is needed, and one that this torch lacks
is left out: no other operator depends on it.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import torch

from torchport.errors import OptionError, did_you_mean
from torchport.facade import shown
from torchport.torch_compat import registries

Kind = Literal["translation", "composition", "repair"]
Function = TypeVar("Function", bound=Callable[..., Any])

_OVERLOAD = re.compile(r"\w+::\w+\.\w+|\w+(\.\w+)+")
_OF_TORCH = ("aten", "prims", "torch_nn")


@dataclasses.dataclass(frozen=True)
class Registered:
    """A function for an operator, the module that registered it, and the module that defines the operator, if any."""

    kind: Kind
    name: str
    function: Callable[..., Any]
    module: str
    defined_in: str = ""


@dataclasses.dataclass(frozen=True)
class LeftOut:
    """An operator that is not there, or a file that does not load, with the reason."""

    kind: Literal["operator", "file"]
    name: str
    reason: str


_registered: dict[str, list[Registered]] = {}


def translates(*names: str, defined_in: str = "") -> Callable[[Function], Function]:
    """Register a function that builds the ONNX nodes of operators.

    Args:
        names: the overloads, ``aten::roll.default`` with the overload always spelled; or Python functions on sizes,
            ``operator.add``.
        defined_in: a module to import before the operators are looked up, where `import torch` does not define them.
    """
    return _register("translation", names, sys._getframe(1).f_globals["__name__"], defined_in)


def composes(*names: str, defined_in: str = "") -> Callable[[Function], Function]:
    """Register a plain PyTorch function that replaces calls of operators.

    Args:
        names: the overloads, ``aten::roll.default`` with the overload always spelled.
        defined_in: a module to import before the operators are looked up, where `import torch` does not define them.
    """
    return _register("composition", names, sys._getframe(1).f_globals["__name__"], defined_in)


def replaces(*names: str) -> Callable[[Function], Function]:
    """Register a function that a repair calls in the place of Python functions of torch.

    Args:
        names: the functions, ``torch.linalg.lstsq``.
    """
    return _register("repair", names, sys._getframe(1).f_globals["__name__"], "")


def _register(kind: Kind, names: tuple[str, ...], module: str, defined_in: str) -> Callable[[Function], Function]:
    for name in names:
        if not _OVERLOAD.fullmatch(name):
            raise ValueError(f"'{name}' is no overload: write 'aten::roll.default', or 'operator.add' for a function")

    def register(function: Function) -> Function:
        entries = _registered.setdefault(module, [])
        entries += (Registered(kind, name, function, module, defined_in) for name in names)
        return function

    return register


def registered_in(module: str) -> tuple[Registered, ...]:
    """Return what a module registered, in its order."""
    return tuple(_registered.get(module, ()))


def found(entries: Iterable[Registered]) -> dict[Any, Callable[..., Any]]:
    """Return the operators of registrations with their functions, without those that are not there."""
    operators = ((operator_of(entry), entry.function) for entry in entries)
    return {operator: function for operator, function in operators if operator is not None}


def left_out(entries: Iterable[Registered]) -> tuple[LeftOut, ...]:
    """Return the operators of registrations that are not there, each once."""
    missing = (_missing(entry) for entry in entries)
    return tuple(dict.fromkeys(one for one in missing if one is not None))


def operator_of(entry: Registered) -> Any | None:
    """Return the operator of a registration; None if it is not there."""
    if entry.defined_in and not _is_imported(entry.defined_in):
        return None
    return registries.operator(entry.name)


def _missing(entry: Registered) -> LeftOut | None:
    """Return why the operator of a registration is not there; None if it is, or if nothing has loaded its package."""
    if operator_of(entry) is not None:
        return None
    space = _space(entry.name)
    if space in _OF_TORCH:
        release, _, _ = torch.__version__.partition("+")
        return LeftOut("operator", entry.name, f"not in torch {release}")
    if not registries.has_operators(space):
        return None
    return LeftOut("operator", entry.name, f"not among the operators of {space} that are loaded")


def _space(name: str) -> str:
    """Return the package of operators that ``torchvision::nms.default`` or ``torch.ops.torchvision.nms`` belongs to."""
    if name.startswith("torch.ops."):
        return name.split(".")[2]
    return name.partition("::")[0] if "::" in name else "aten"


def _is_imported(module: str) -> bool:
    try:
        importlib.import_module(module)
    except ImportError:
        return False
    return True


# Operators as users name them.


def check_name(name: str) -> None:
    """Check that torch has an operator ``aten::asinh``; operators of other libraries may be loaded later.

    Raises:
        OptionError: the name is of torch's own, and torch has no such operator.
    """
    own = name.partition(".")[0]
    if own.partition("::")[0] in ("aten", "prims") and not registries.is_operator(own):
        raise _no_operator(own)


def by_overload(table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Return a user's translations by overload; ``"aten::relu"`` and ``torch.ops.aten.relu`` stand for all overloads.

    Raises:
        OptionError: a name is of no operator, or what stands for it is no function.
    """
    found: dict[Any, Callable[..., Any]] = {}
    for key, function in table.items():
        if not callable(function):
            raise OptionError(f"the translation of {key} is a function, not {shown(function)}")
        found.update(dict.fromkeys(_overloads(key), function))
    return found


def _overloads(key: Any) -> list[Any]:
    if registries.is_packet(key):
        return [getattr(key, name) for name in key.overloads()]
    if not isinstance(key, str):
        return [key]
    name, _, overload = key.partition(".")
    known = registries.overloads(name) if "::" in name else {}
    if not known or (overload and overload not in known):
        raise _no_operator(key, [f"{name}.{one}" for one in known])
    return [known[overload]] if overload else list(known.values())


def _no_operator(name: str, overloads: Sequence[str] = ()) -> OptionError:
    plain = [n for n in registries.operator_names() if n.startswith(name.partition("::")[0]) and not n.endswith("_")]
    return OptionError(
        f"torch {torch.__version__.partition('+')[0]} has no operator '{name}'",
        next_step=did_you_mean(name, overloads or plain, "`torchport ops find` looks for a part of a name", cutoff=0.7),
    )
