"""Whether what a recipe gives is what an edit takes.

YAML has its own idea of types: a tensor called ``492`` is read as a number, ``no`` as false. The annotations of the
edit's function say what is meant, so they are asked here, once for all edits.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from torchport.errors import InputError

_WORDS = {str: "a text", bool: "true or false", int: "a whole number", float: "a number"}
_UNFIT = object()


def fitted(
    name: str, function: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any]
) -> inspect.BoundArguments:
    """The arguments of a call, each of the type that the function takes.

    Args:
        name: of the edit, for the error.
        function: what is to be called.
        args: what it is given by position, the model first.
        named: what it is given by name.

    Raises:
        InputError: an argument is missing, unknown, or of another type.

    Example:
        >>> fitted("set-opset", convert, (model, "18"), {}).args[1]
        18
    """
    try:
        bound = inspect.signature(function).bind(*args, **named)
    except TypeError as error:
        fields = list(inspect.signature(function).parameters)[1:]
        raise InputError(
            f"the edit '{name}' does not fit: {error}", next_step=f"it takes {', '.join(fields) or 'nothing'}"
        ) from error
    hints = typing.get_type_hints(function)
    for field in list(bound.arguments)[1:]:
        value = _as(hints[field], bound.arguments[field])
        if value is _UNFIT:
            raise _unfit(name, field, hints[field], bound.arguments[field])
        bound.arguments[field] = value
    return bound


def _unfit(name: str, field: str, hint: Any, value: Any) -> InputError:
    words = list(dict.fromkeys(w for one in _kinds(hint) if (w := _word(one))))
    hint_text = "write it in quotes" if isinstance(value, bool) and "a text" in words else f"give {' or '.join(words)}"
    return InputError(
        f"'{field}' of the edit '{name}' is {' or '.join(words)}, not {str(value)[:60]!r}", next_step=hint_text
    )


def _kinds(hint: Any) -> tuple[Any, ...]:
    """The types of a union, or the one type."""
    return typing.get_args(hint) if isinstance(hint, types.UnionType) or _is(hint, typing.Union) else (hint,)


def _is(hint: Any, origin: Any) -> bool:
    return typing.get_origin(hint) is origin


def _word(kind: Any) -> str | None:
    """What a recipe can hold of a type; None for a model or a function, which only Python has."""
    if _is(kind, Mapping):
        return "a mapping"
    return "a list" if _is(kind, Sequence) else _WORDS.get(kind)


def _as(hint: Any, value: Any) -> Any:
    """The value, as text or number where only the writing differs; `_UNFIT` if it is of no type that is taken."""
    kinds = _kinds(hint)
    for kind in kinds:
        found = _exactly(kind, value)
        if found is not _UNFIT:
            return found
    if str in kinds and isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)  # a name that looks like a number
    if int in kinds and isinstance(value, str) and value.strip().lstrip("-").isdecimal():
        return int(value)
    return _UNFIT


def _exactly(kind: Any, value: Any) -> Any:
    if kind is Any:
        return value
    if _is(kind, Mapping):
        return _mapping(typing.get_args(kind), value)
    if _is(kind, Sequence):
        return _sequence(typing.get_args(kind)[0], value)
    if _is(kind, Callable):
        return value if callable(value) else _UNFIT
    if isinstance(value, bool) and kind is not bool:
        return _UNFIT
    wanted = typing.get_origin(kind) or kind
    return value if isinstance(value, (int, float) if wanted is float else wanted) else _UNFIT


def _mapping(inner: tuple[Any, ...], value: Any) -> Any:
    if not isinstance(value, Mapping):
        return _UNFIT
    pairs = [(_as(inner[0], k), _as(inner[1], v)) for k, v in value.items()]
    return _UNFIT if any(part is _UNFIT for pair in pairs for part in pair) else dict(pairs)


def _sequence(inner: Any, value: Any) -> Any:
    if isinstance(value, (str, bytes, Mapping, ir.Model)) or not isinstance(value, Sequence):
        return _UNFIT
    items = [_as(inner, item) for item in value]
    return _UNFIT if any(item is _UNFIT for item in items) else items
