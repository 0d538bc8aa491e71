"""What public functions have in common: they are imported when first used, and their arguments are checked."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, ParamSpec, TypeVar

from torchport.errors import InputError, OptionError, did_you_mean

P = ParamSpec("P")
R = TypeVar("R")


def lazy_names(
    facade: str, homes: Mapping[str, str], *, check: bool = False
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return the `__getattr__`, `__dir__` and `__all__` of a facade.

    Importing the facade costs nothing: a name is imported when it is first used.

    Args:
        facade: the module's name.
        homes: module to the names that are taken from it, ``"load save"``; ``"convert=set_opset"`` gives a name of its
            own, and ``"=graph"`` the module itself.
        check: whether functions refuse arguments of another type than their annotations say.
    """
    found: dict[str, tuple[str, str]] = {}
    for home, names in homes.items():
        for name in names.split():
            there, _, own = name.partition("=")
            found[own or there] = (home, there)

    def get(name: str) -> Any:
        if name not in found:
            raise AttributeError(f"module {facade!r} has no attribute {name!r}")
        home, there = found[name]
        module = import_module(home)
        value = getattr(module, there) if there else module
        value = checked(value, name) if check and inspect.isfunction(value) else value
        setattr(sys.modules[facade], name, value)
        return value

    public = sorted(found)
    return get, lambda: public, public


def checked(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a function that refuses arguments of another type than its annotations say, with an `InputError`."""

    @functools.wraps(function)
    def wrapped(*args: Any, **named: Any) -> Any:
        bound = _typed(function)[0].bind(*args, **named)
        check_types(f"{name}()", function, bound)
        return function(*bound.args, **bound.kwargs)

    return wrapped


def known_arguments(
    title: str, others: Mapping[str, str], third: str = ""
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator: arguments that the function does not have are an `OptionError` that names those it has.

    Args:
        title: how users call the function, ``tp.export``.
        others: what to write instead of names that other functions have, ``{"opset_version": "opset"}``; a text with a
            space is the whole advice.
        third: what is probably meant by one argument too many.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        parameters = inspect.signature(function).parameters
        by_position = sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters.values())

        @functools.wraps(function)
        def wrapped(*args: P.args, **named: P.kwargs) -> R:
            unknown = [name for name in named if name not in parameters]
            if unknown:
                raise _unknown_arguments(title, unknown, others, list(parameters))
            if len(args) > by_position:
                raise OptionError(
                    f"{title} takes {by_position} arguments by position, {len(args)} are given",
                    next_step=f"give the others by name{third and f': {third}={shown(args[by_position])}'}",
                )
            return function(*args, **named)

        return wrapped

    return decorate


def _unknown_arguments(title: str, unknown: list[str], others: Mapping[str, str], own: list[str]) -> OptionError:
    listed = f"arguments are {', '.join(own)}"
    advice = [_advice(name, others[name]) if name in others else did_you_mean(name, own, listed) for name in unknown]
    names = ", ".join(f"'{name}'" for name in unknown)
    return OptionError(f"{title} has no argument {names}", next_step="; ".join(dict.fromkeys(advice)))


def _advice(name: str, instead: str) -> str:
    return f"{name}: {instead}" if " " in instead else f"write {instead}= for {name}="


_WORDS = {str: "a text", bool: "true or false", int: "a whole number", float: "a number"}
_PYTHON_WORDS = {type(None): "None", Callable: "a function", os.PathLike: "a path"}
_UNFIT = object()


@functools.cache
def _typed(function: Callable[..., Any]) -> tuple[inspect.Signature, dict[str, Any]]:
    return inspect.signature(function), typing.get_type_hints(function)


def check_types(title: str, function: Callable[..., Any], bound: inspect.BoundArguments, *, text: bool = False) -> None:
    """Check that arguments are of the types that a function's annotations say.

    Args:
        title: what the arguments are for, to be named in the error.
        function: the function that is to be called.
        bound: its arguments. With `text` they are changed to what is meant.
        text: whether the arguments are read from YAML or a command line, where a tensor called ``492`` is a number and
            a number may be a text. The words of the error are those for such a file then.

    Raises:
        InputError: an argument is of another type.
    """
    for field, given in bound.arguments.items():
        hint = _typed(function)[1].get(field, Any)
        value = _as(hint, given, text=text)
        if value is _UNFIT:
            raise _unfit(title, field, hint, given, text=text)
        if text:
            bound.arguments[field] = value


def _unfit(title: str, field: str, hint: Any, value: Any, *, text: bool) -> InputError:
    taken = _words(hint, text=text)
    quote = text and isinstance(value, bool) and "a text" in taken
    return InputError(
        f"'{field}' of {title} is {taken}, not {repr(str(value)[:60]) if text else shown(value)}",
        next_step="write it in quotes" if quote else f"give {taken}",
    )


def shown(value: object) -> str:
    """Return how an error shows an argument: as Python writes it where that is short, else its type."""
    kind = type(value)
    if kind.__module__ != "builtins":
        home = kind.__module__.partition(".")[0]
        return f"{'an' if home[:1] in 'aeiou' else 'a'} {home}.{kind.__name__}"
    line = " ".join(repr(value).split())
    return line if len(line) <= 60 else f"{line[:57]}..."


def _kinds(hint: Any) -> tuple[Any, ...]:
    """The types of a union, or the one type."""
    return typing.get_args(hint) if isinstance(hint, types.UnionType) or _is(hint, typing.Union) else (hint,)


def _is(hint: Any, origin: Any) -> bool:
    return typing.get_origin(hint) is origin


def _words(hint: Any, *, text: bool) -> str:
    """The words for all types that are taken: ``a text, an onnx_ir.Node or a list of them``."""
    kinds = _kinds(hint)
    plain = [w for one in kinds if not _is(one, Sequence) and (w := _word(one, text=text))]
    lists = [one for one in kinds if _is(one, Sequence)]
    inner = _words(typing.get_args(lists[0])[0], text=text) if lists and not text else ""
    if lists:
        plain.append("a list" + (" of them" if inner and inner == _joined(plain) else f" of {inner}" if inner else ""))
    return _joined(plain)


def _joined(words: list[str]) -> str:
    some = list(dict.fromkeys(words))
    return " or ".join([*([", ".join(some[:-1])] if some[:-1] else []), *some[-1:]])


def _word(kind: Any, *, text: bool) -> str | None:
    """The words for a type; None for any, or one that a text file cannot hold, such as a model or a function."""
    if _is(kind, Mapping):
        key, value = ("", "") if text else (_words(one, text=text) for one in typing.get_args(kind))
        return f"a mapping from {key} to {value}" if key and value else "a mapping"
    if kind in _WORDS or text or kind is Any:
        return _WORDS.get(kind)
    plain = typing.get_origin(kind) or kind
    return _PYTHON_WORDS.get(plain, f"an {plain.__module__.partition('.')[0]}.{plain.__name__}")


def _as(hint: Any, value: Any, *, text: bool) -> Any:
    """The value, as text or number where only the writing differs; `_UNFIT` if it is of no type that is taken."""
    kinds = _kinds(hint)
    for kind in kinds:
        found = _exactly(kind, value, text=text)
        if found is not _UNFIT:
            return found
    if text and str in kinds and isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)  # a name that looks like a number
    if text and int in kinds and isinstance(value, str) and value.strip().lstrip("-").isdecimal():
        return int(value)
    return _UNFIT


def _exactly(kind: Any, value: Any, *, text: bool) -> Any:
    if kind is Any:
        return value
    if _is(kind, Mapping):
        return _mapping(typing.get_args(kind), value, text=text)
    if _is(kind, Sequence):
        return _sequence(typing.get_args(kind)[0], value, text=text)
    if _is(kind, Callable):
        return value if callable(value) else _UNFIT
    if isinstance(value, bool) and kind is not bool:
        return _UNFIT
    wanted = typing.get_origin(kind) or kind
    return value if isinstance(value, (int, float) if wanted is float else wanted) else _UNFIT


def _mapping(inner: tuple[Any, ...], value: Any, *, text: bool) -> Any:
    if not isinstance(value, Mapping):
        return _UNFIT
    pairs = [(_as(inner[0], k, text=text), _as(inner[1], v, text=text)) for k, v in value.items()]
    return _UNFIT if any(part is _UNFIT for pair in pairs for part in pair) else dict(pairs)


def _sequence(inner: Any, value: Any, *, text: bool) -> Any:
    if isinstance(value, (str, bytes, bytearray, Mapping)) or not isinstance(value, Sequence):
        return _UNFIT
    items = [_as(inner, item, text=text) for item in value]
    return _UNFIT if any(item is _UNFIT for item in items) else items
