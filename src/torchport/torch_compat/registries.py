"""What torch knows: its operators, and how its two exporters map them.

torch has no public way to ask for either, so its private registries are read here and nowhere else.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import logging
import pkgutil
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from torchport.torch_compat.parts import PARTS, has, part

_SHAPES = ("Meta", "CompositeImplicitAutograd", "CompositeExplicitAutograd")


@dataclasses.dataclass(frozen=True)
class Written:
    """A mapping somebody wrote: to which ONNX operators, from which opset, in which file."""

    onnx: tuple[str, ...]
    since: int
    where: str


def operator_names() -> tuple[str, ...]:
    """Every operator torch has loaded, as ``aten::add``."""
    return tuple(sorted({name.partition(".")[0] for name in part("_dispatch_get_all_op_names")()}))


def overloads(name: str) -> dict[str, Any]:
    """The overloads of an operator by name, ``default`` for the nameless one; not those TorchScript has for numbers."""
    space, _, own = name.partition("::")
    packet = getattr(getattr(torch.ops, space), own, None) if own.isidentifier() and space.isidentifier() else None
    known = {
        n.partition(".")[2] or "default" for n in part("_dispatch_get_all_op_names")() if n.partition(".")[0] == name
    }
    return {o: getattr(packet, o) for o in packet.overloads() if o in known} if packet is not None else {}


def operator(name: str) -> Any | None:
    """Return the overload ``aten::roll.default``, or the Python function ``operator.add``; None if there is none."""
    space, _, own = name.partition("::")
    if not own:
        return python_function(name)
    packet, _, overload = own.partition(".")
    return getattr(getattr(getattr(torch.ops, space), packet, None), overload, None)


def is_operator(name: str) -> bool:
    """Check that torch has an operator of the name ``aten::asinh``, for tensors or in TorchScript."""
    space, _, own = name.partition("::")
    return hasattr(getattr(torch.ops, space), own)


def is_overload(value: Any) -> bool:
    """Check that a value is an overload of an operator, such as ``torch.ops.aten.add.Tensor``."""
    return isinstance(value, type(torch.ops.aten.add.Tensor))


def is_packet(value: Any) -> bool:
    """Check that a value is an operator with all its overloads, such as ``torch.ops.aten.add``."""
    return isinstance(value, type(torch.ops.aten.add))


def schema(overload: Any) -> Any:
    """Return the schema of an overload."""
    return overload._schema


def written_places(target: Any) -> list[int]:
    """Return the places of the arguments that an operator writes to; none for another function."""
    arguments = schema(target).arguments if is_overload(target) else ()
    return [n for n, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write]


def gives_view(target: Any) -> bool:
    """Check that an operator may give a view of its first argument."""
    return is_overload(target) and any(r.alias_info is not None for r in schema(target).returns)


def has_operators(space: str) -> bool:
    """Check that operators of this namespace are loaded; without torch's list none is known to be."""
    if not has("_dispatch_get_all_op_names"):
        return False
    return any(name.startswith(f"{space}::") for name in part("_dispatch_get_all_op_names")())


@functools.cache
def python_function(name: str) -> Any | None:
    """Return the function ``torch.linalg.lstsq``, or a private part by its name; None if this torch lacks it."""
    if name in PARTS:
        return part(name) if has(name) else None
    try:
        return pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return None


def has_shapes(operator: Any) -> bool:
    """Whether torch can tell an operator's shapes: by a function for fake tensors, or because it is made of others."""
    known = any(part("_dispatch_has_kernel_for_dispatch_key")(operator.name(), key) for key in _SHAPES)
    return known or part("simple_registry").find(schema(operator).name).fake_impl.kernel is not None


@functools.cache
def modern(name: str) -> tuple[Written, ...]:
    """The functions of torch.onnx's modern exporter for ``aten::add.Tensor``; the nameless overload has no dot."""
    registry = _modern_registry()
    found = registry.functions.get(name.removesuffix(".default"), ())
    return tuple(dict.fromkeys(_written(f.onnx_function, f.opset_introduced) for f in found))


def modern_names() -> Iterator[str]:
    return (key for key in _modern_registry().functions if isinstance(key, str))


def is_decomposed(operator: Any) -> bool:
    """Whether the modern exporter takes an operator apart into others."""
    return operator in decomposition_table() or bool(operator._can_decompose())


def made_of_others(operator: Any, *args: Any, **kwargs: Any) -> Any:
    """Call an operator by torch's own form of it in other operators, past what a decomposition puts in its place.

    Raises:
        NotImplementedError: torch has no such form.
    """
    if not operator._can_decompose():
        raise NotImplementedError(f"{operator} is not made of other operators")
    return operator._op_dk(part("DispatchKey").CompositeImplicitAutograd, *args, **kwargs)


def script(name: str) -> Written | None:
    """The symbolic function of the TorchScript exporter, for the routes script and trace."""
    group = _script_registry().get_function_group(name)
    if group is None or not list(group._functions):  # one whose functions were all taken back is left behind empty
        return None
    since = group.get_min_supported()
    return _written(group.get(since), since)


def custom_symbolics() -> dict[str, dict[int, Callable[..., Any]]]:
    """What the user registered with `torch.onnx.register_custom_op_symbolic`, by operator and opset."""
    found: dict[str, dict[int, Callable[..., Any]]] = {}
    if not has("script_registry"):
        return found
    registry = _script_registry()
    for name in registry.all_functions():
        given = registry.get_function_group(name)._functions._overrides
        if given:
            found[name] = dict(given)
    return found


@functools.cache
def _modern_registry() -> Any:
    read = part("ONNXRegistry")
    log = logging.getLogger(read.__func__.__module__)
    level = log.level
    log.setLevel(logging.ERROR)  # it warns of every package that is not installed
    try:
        return read()
    finally:
        log.setLevel(level)


@functools.cache
def decomposition_table() -> dict[Any, Callable[..., Any]]:
    """What the modern exporter takes apart, and how."""
    registry = _modern_registry()
    given = {f.fx_target for functions in registry.functions.values() for f in functions}
    return dict(part("create_onnx_friendly_decomposition_table")(given))


@functools.cache
def _script_registry() -> Any:
    registry = part("script_registry")
    package = type(registry).__module__.rpartition(".")[0]
    for opset in range(7, 21):
        importlib.import_module(f"{package}.symbolic_opset{opset}")
    return registry


def _written(function: Any, since: int) -> Written:
    """The operators are read off the source: ``op.Asinh(...)`` here, ``g.op("Asinh", ...)`` there."""
    plain = _plain(function)
    try:
        source, line = inspect.getsourcelines(plain)
    except (OSError, TypeError):
        return Written((), since, "")
    path = inspect.getsourcefile(plain) or ""
    return Written(tuple(dict.fromkeys(_built(plain, "".join(source)))), since, f"{_short(path)}:{line}")


def _built(function: Any, text: str, depth: int = 2) -> list[str]:
    """ONNX operators that a function builds, itself or in helpers of its module."""
    found = re.findall(r"\bop\.([A-Z]\w+)\(", text) + re.findall(r"\.op\(\s*\"(\w+)\"", text)
    for name in function.__code__.co_names if depth and inspect.isfunction(function) else ():
        helper = _plain(function.__globals__.get(name))
        if inspect.isfunction(helper) and helper.__module__ == function.__module__ and helper is not function:
            found += _built(helper, inspect.getsource(helper), depth - 1)
    return found


def written(function: Callable[..., Any], since: int = 18) -> Written:
    """The same for a function of our own, or the user's."""
    return _written(function, since)


def _plain(function: Any) -> Any:
    function = getattr(function, "func", None) or getattr(function, "function", None) or function
    return inspect.unwrap(function) if callable(function) else function


def _short(path: str) -> str:
    """From the package on."""
    parts = Path(path).parts
    for folder in ("site-packages", "src"):
        if folder in parts:
            return str(Path(*parts[len(parts) - parts[::-1].index(folder) :]))
    return path
