"""Operators given as plain PyTorch: a program's calls of them are replaced before it is translated.

A translation builds ONNX nodes; a composition is a PyTorch function of operators that have translations. It is captured
as the model was, so it sees symbolic sizes and must not look at values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from torchport.errors import OptionError
from torchport.torch_compat import registries

_registered: dict[str, Callable[..., Any]] = {}


def composition(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Map a torch operator by a plain PyTorch function of operators that have mappings. For the modern routes.

    Args:
        name: the operator, with all its overloads, ``aten::cdist`` or ``mylib::my_add``; or one, ``aten::add.Tensor``.

    Example:
        >>> @tp.composition("mylib::my_add")
        ... def my_add(a, b, alpha=3.0):
        ...     return a * alpha + b
    """
    if not isinstance(name, str) or "::" not in name:
        raise OptionError(f"'{name}' names no operator", next_step='write it as "domain::name": "aten::cdist"')

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        _registered[name] = function
        return function

    return register


def forget(name: str) -> None:
    """Take back what was registered for an operator."""
    _registered.pop(name, None)


def compositions() -> dict[Any, Callable[..., Any]]:
    """The user's, by overload."""
    found: dict[Any, Callable[..., Any]] = {}
    for name, function in _registered.items():
        own, _, overload = name.partition(".")
        found |= {op: function for o, op in registries.overloads(own).items() if overload in ("", o)}
    return found


def composed(
    program: torch.export.ExportedProgram, compositions: Mapping[Any, Callable[..., Any]]
) -> torch.export.ExportedProgram:
    """The program with its calls of these operators replaced, also those that replacing left; itself if it has none."""
    by_name = {_name(op): function for op, function in compositions.items()}
    calls = [(node, by_name.get(_name(node.target))) for node in operator_calls(program.graph_module)]
    used = {_name(node.target) for node, function in calls if function is not None and applies_to(function, node)}
    wanted = {op: function for op, function in compositions.items() if _name(op) in used}
    if not wanted:
        return program
    others = {op: function for op, function in compositions.items() if op not in wanted}
    return composed(program.run_decompositions(wanted), others)


def only_where(
    applies: Callable[..., bool],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A composition for some calls only, by their arguments (tensors as torch.export knows them); others are left as
    they are. Replacing none saves a capture."""

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def composition(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs) if applies(*args, **kwargs) else NotImplemented

        composition.applies = applies  # type: ignore[attr-defined]
        return composition

    return mark


def is_partial(function: Callable[..., Any]) -> bool:
    """Check that a composition is for some calls only."""
    return hasattr(function, "applies")


def applies_to(function: Callable[..., Any], node: torch.fx.Node) -> bool:
    """Check that a composition replaces a call."""
    applies = getattr(function, "applies", None)
    if applies is None:
        return True
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
    return bool(applies(*args, **kwargs))


def operator_calls(module: torch.nn.Module) -> Iterator[torch.fx.Node]:
    """Every call of an operator, in branches and loops too."""
    for part in module.modules():
        if isinstance(part, torch.fx.GraphModule):
            yield from (n for n in part.graph.nodes if n.op == "call_function" and registries.is_overload(n.target))


def _name(operator: Any) -> str:
    """With its overload, and the same for the form that writes in place."""
    schema = registries.schema(operator)
    return f"{schema.name.removesuffix('_')}.{schema.overload_name}"
