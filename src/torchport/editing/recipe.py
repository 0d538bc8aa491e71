"""Apply a list of edits, given in Python, in a YAML file or on the command line, and check their arguments."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import onnx_ir as ir

from torchport.editing.registry import EDITS, Edit
from torchport.editing.transaction import all_or_nothing, take_over
from torchport.errors import InputError, TorchportError, did_you_mean
from torchport.irtools.metadata import PROOF
from torchport.terminal import shortened

# Apply a list of edits, from Python, from a YAML file or from the command line.
#
# - bypass: devtech::FooOp
# - rename: {x: image}
# - set-attribute: {node: LeakyRelu, name: alpha, value: 0.2}
# - insert: Clip after logits
# - sort

Value = Any  # what YAML has: text, numbers, lists, mappings
_MOST_BYTES = 1 << 20  # of a recipe


@dataclasses.dataclass(frozen=True)
class Step:
    """One edit with what it is given."""

    edit: Edit
    value: Value = None

    def __str__(self) -> str:
        return self.edit.name if self.value is None else f"{self.edit.name}: {_written(self.edit, self.value)}"


def edit(model: ir.Model, recipe: str | os.PathLike[str] | Sequence[Any]) -> ir.Model:
    """Apply the edits of a recipe in order.

    Args:
        model: changed in place.
        recipe: a YAML file, or what such a file holds: a list of ``{edit: value}``, or of names of edits without value.

    Returns:
        The changed model, the same object.

    Raises:
        TorchportError: an edit is refused, which it names; the model is as it was, without those before it.

    Example:
        >>> model = tp.graph.load("model.onnx")
        >>> model = tp.graph.edit(model, [{"bypass": "devtech::FooOp"}, {"rename": {"x": "image"}}, "sort"])
    """
    steps = read_steps(recipe)
    with all_or_nothing(model):
        moved = False
        for step in steps:
            try:
                changed = apply(model, step)
            except TorchportError as error:
                raise told(error, step) from error
            moved |= changed > 0 and not step.edit.same
        if moved:
            model.metadata_props.pop(PROOF, None)
    return model


def read_steps(recipe: str | os.PathLike[str] | Sequence[Any]) -> list[Step]:
    """The steps of a recipe, checked for names and forms, not yet against a model."""
    entries = _read_file(Path(recipe)) if isinstance(recipe, (str, os.PathLike)) else list(recipe)
    if not isinstance(entries, list) or not entries:
        raise InputError(
            "a recipe is a list of edits, this holds none", next_step="write one a line: - bypass: node_name"
        )
    return [_read_entry(entry, number) for number, entry in enumerate(entries, start=1)]


def apply(model: ir.Model, step: Step) -> int:
    """Apply one step, and return in how many places it changed the model; the caller drops the proof."""
    function = _function(step.edit)
    changed = 0
    for args, named in _arguments(step):
        call = fitted(step.edit.name, function, (model, *args), {**dict(step.edit.options), **named})
        result = function(*call.args, **call.kwargs)
        if step.edit.new:
            take_over(model, result)
        changed += 1 if step.edit.new else result
    return changed


def passed_over(model: ir.Model, step: Step) -> list[str]:
    """Why a step will leave some places as they are that it is meant for: those which a pattern may not take."""
    what = step.value.get("what") if step.edit.name == "replace" else None
    if not isinstance(what, str):
        return []
    from torchport.editing.selection import blocked_places

    return blocked_places(model, what)


def from_text(edit: Edit, text: str | None) -> Step:
    """A step as it is written on the command line: the short form, or YAML in braces."""
    if text is None or edit.form == "flag":
        return Step(edit)
    value = _yaml(text) if text[:1] in "{[" and edit.form not in ("name", "optional name") else text
    return Step(edit, _checked(edit, _short(edit, value) if isinstance(value, str) else value))


# --- reading ----------------------------------------------------------------------------------------------------------


def _read_file(path: Path) -> Any:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InputError(f"'{path}' is too large for a recipe", next_step="a recipe is a short YAML file")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"the recipe '{path}' cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"the recipe '{path}' is no text") from error
    try:
        return _yaml(text)
    except InputError as error:
        error.where = f"{path}, {error.where}"
        raise


def _yaml(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        raise InputError(
            f"no valid YAML: {getattr(error, 'problem', None) or 'nested too deeply'}",
            where=f"line {mark.line + 1}, column {mark.column + 1}" if mark else text[:60],
        ) from error


def _read_entry(entry: Any, number: int) -> Step:
    if isinstance(entry, str):
        entry = {entry: None}
    if not isinstance(entry, Mapping) or len(entry) != 1:
        raise InputError(
            f"entry {number} of the recipe is no edit: {str(entry)[:80]}",
            next_step="write each as `- name: value`, for example `- bypass: node_name`",
        )
    ((name, value),) = entry.items()
    edit = find(str(name), f"entry {number} of the recipe")
    if isinstance(value, str):
        value = _short(edit, value)
    return Step(edit, _checked(edit, value))


def find(name: str, where: str | None = None) -> Edit:
    """The edit of that name; ``set_dim`` and ``set-dim`` are one."""
    found = EDITS.get(name.replace("_", "-"))
    if found is None:
        hint = did_you_mean(name, EDITS, f"there are: {', '.join(EDITS)}")
        raise InputError(f"there is no edit '{name}'", where=where, next_step=hint)
    return found


def _short(edit: Edit, text: str) -> Value:
    """What the short form of an edit means."""
    if edit.name == "set-attribute":
        match = re.fullmatch(r"(.+):(\w+)=(.*)", text, re.DOTALL)
        return {"node": match[1], "name": match[2], "value": _yaml(match[3])} if match else text
    if edit.form in ("pairs", "assign"):
        old, sign, new = text.partition("=")
        if not sign:
            return text
        return {old: (new or None) if edit.form == "pairs" else _yaml(new)}
    if edit.form == "fields":
        return _fields(edit, text)
    if edit.form == "steps":
        return _yaml(f"[{text}]")
    return text


def _fields(edit: Edit, text: str) -> Value:
    """`Relu after conv1` as fields; the first has no word before it."""
    (first, _), *others = edit.between
    for field, word in others:
        left, found, right = text.partition(f" {word} ")
        if found:
            return {first: left.strip(), field: right.strip()}
    return text if others else {first: text}


def _checked(edit: Edit, value: Value) -> Value:
    """Refuse a value of the wrong form here, where the edit's name is known."""
    fits = {
        "flag": value is None or value is True,
        "name": isinstance(value, (str, int, list)) and not isinstance(value, bool) and value != [],
        "optional name": value is None or isinstance(value, str),
        "pairs": isinstance(value, Mapping) and len(value) > 0,
        "assign": isinstance(value, Mapping) and len(value) > 0,
        "fields": isinstance(value, Mapping),
        "steps": isinstance(value, (list, Mapping)),
    }[edit.form]
    if not fits:
        takes = f"takes {edit.metavar}" if edit.metavar else "takes no value"
        raise InputError(f"the edit '{edit.name}' {takes}, not {str(value)[:80]!r}", next_step=edit.help)
    return value


# --- applying ---------------------------------------------------------------------------------------------------------


def _arguments(step: Step) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """The calls a step makes."""
    value, form = step.value, step.edit.form
    if form == "flag" or (form == "optional name" and value is None):
        return [((), {})]
    if form == "assign":
        return [((k, v), {}) for k, v in value.items()]
    if form == "fields" or (form == "steps" and isinstance(value, Mapping)):
        return [((), {str(k): v for k, v in value.items()})]
    if form == "name" and isinstance(value, list):
        return [((one,), {}) for one in value]
    return [((value,), {})]


def _function(edit: Edit) -> Callable[..., Any]:
    module, _, name = edit.home.partition(":")
    function: Callable[..., Any] = getattr(import_module(module), name)
    return function


def told(error: TorchportError, step: Step) -> TorchportError:
    """The error, with the step it came from."""
    place = f"in the edit {shortened(str(step), 60)}"
    error.where = f"{error.where}; {place}" if error.where else place
    return error


def _written(edit: Edit, value: Value) -> str:
    """The value of an edit as its short form has it, else as YAML."""
    if isinstance(value, Mapping) and edit.form in ("pairs", "assign"):
        return ", ".join(f"{k}={'' if v is None else v}" for k, v in value.items())
    if edit.name == "set-attribute" and set(value) == {"node", "name", "value"}:
        return f"{value['node']}:{value['name']}={'' if value['value'] is None else value['value']}"
    words = dict(edit.between)
    if edit.form == "fields" and set(value) <= set(words):
        return " ".join(f"{words[k]} {value[k]}".strip() for k in words if k in value)
    return value if isinstance(value, str) else _flow(value)


def _flow(value: Value) -> str:
    """On one line, as YAML has it; what only Python has is shown as Python does."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k}: {_flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return str(value)


# Whether what a recipe gives is what an edit takes.
#
# YAML has its own idea of types: a tensor called ``492`` is read as a number, ``no`` as false. The annotations of the
# edit's function say what is meant, so they are asked here, once for all edits.

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
