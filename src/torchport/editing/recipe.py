"""Apply a list of edits, given in Python, in a YAML file or on the command line, and check their arguments."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import onnx_ir as ir

from torchport.editing.registry import EDITS, Edit
from torchport.editing.transaction import all_or_nothing, take_over
from torchport.errors import InputError, ProofError, TorchportError, did_you_mean
from torchport.facade import check_types
from torchport.files.onnx_files import ModelLike, as_model
from torchport.irtools.metadata import PROOF
from torchport.results import Proof, Record
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


@dataclasses.dataclass(frozen=True)
class Done:
    """One edit of a recipe that was made.

    Attributes:
        edit: the edit as a recipe writes it.
        changed: in how many places it changed the model.
        left: why it left places as they are that its pattern matches, a reason for each.
    """

    edit: str
    changed: int
    left: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Edited(Record):
    """The result of a recipe.

    Attributes:
        model: the changed model; the given object, if that is an `ir.Model`.
        edits: the edits that were made, in order.
        proof: that the model gives the same outputs as before; None if that was not to be verified.
    """

    model: ir.Model
    edits: tuple[Done, ...]
    proof: Proof | None = None

    json_omits = ("model",)


def edit(
    model: ModelLike,
    recipe: str | os.PathLike[str] | Sequence[Any],
    *,
    verify: bool = False,
    inputs: Mapping[str, Any] | None = None,
    libraries: Sequence[str | os.PathLike[str]] = (),
) -> Edited:
    """Apply the edits of a recipe in order, all of them or none.

    Args:
        model: an `ir.Model` is changed in place; a file or a message stays as it is.
        recipe: a YAML file, or what such a file holds: a list of ``{edit: value}``, or of names of edits without value.
        verify: refuse the recipe unless the changed model gives the same outputs as before.
        inputs: arrays to verify with, by the names of the changed model; made up from its shapes where none are given.
        libraries: operator libraries to verify with.

    Returns:
        The changed model, the edits that were made, and the proof if `verify` is set.

    Raises:
        TorchportError: an edit is refused, which it names; the model is as it was, without the edits before it.
        ProofError: the changed model gives other outputs; the model is as it was.

    Example:
        >>> done = tp.graph.edit("model.onnx", [{"bypass": "devtech::FooOp"}, {"rename": {"x": "image"}}, "sort"])
        >>> tp.graph.save(done.model, "edited.onnx")
    """
    return run_steps(
        model, read_steps(recipe), Verification((lambda _: inputs) if inputs else None, libraries) if verify else None
    )


@dataclasses.dataclass(frozen=True)
class Verification:
    """How to verify the changed model: the inputs for it, None to make them up, and operator libraries."""

    inputs: Callable[[ir.Model], Mapping[str, Any] | None] | None = None
    libraries: Sequence[str | os.PathLike[str]] = ()


def run_steps(
    model: ModelLike,
    steps: Sequence[Step],
    verification: Verification | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Edited:
    """Apply steps in order, all or none; `say` is told what is being done. The rest is as `edit` has it."""
    own = as_model(model)
    before = own.clone() if verification is not None else None
    with all_or_nothing(own):
        done = []
        for step in steps:
            say(f"editing: {step.edit.name}")
            done.append(_done(own, step))
        if verification is not None and before is not None:
            say("proving")
            return Edited(own, tuple(done), _prove(before, own, steps, verification))
        if any(one.changed and not step.edit.same for one, step in zip(done, steps, strict=True)):
            own.metadata_props.pop(PROOF, None)  # it is a proof of the model before
    return Edited(own, tuple(done))


def _done(model: ir.Model, step: Step) -> Done:
    try:
        left = passed_over(model, step)
        return Done(str(step), apply(model, step), tuple(left))
    except TorchportError as error:
        place = f"in the edit {shortened(str(step), 60)}"
        error.where = f"{error.where}; {place}" if error.where else place
        raise


def _prove(before: ir.Model, after: ir.Model, steps: Sequence[Step], verification: Verification) -> Proof:
    from torchport.verification.equivalence import prove_same  # it imports the engines, which edits do not need

    given = verification.inputs(after) if verification.inputs is not None else None
    proof = prove_same(before, after, inputs=given, libraries=verification.libraries)
    if not proof.passed:
        other = [step.edit.name for step in steps if step.edit.new_outputs]
        hint = f"; apply {other[0]} without verifying: it is there to change the outputs" if other else ""
        raise ProofError(
            "the changed model does not answer as before", proof=proof, next_step=f"nothing was changed{hint}"
        )
    return proof


def read_steps(recipe: str | os.PathLike[str] | Sequence[Any]) -> list[Step]:
    """The steps of a recipe, checked for names and forms, not yet against a model."""
    entries = _read_file(Path(recipe)) if isinstance(recipe, (str, os.PathLike)) else recipe
    if not isinstance(entries, (list, tuple)) or not entries:
        raise InputError(
            "a recipe is a list of edits, this holds none", next_step="write one a line: - bypass: node_name"
        )
    return [_read_entry(entry, number) for number, entry in enumerate(entries, start=1)]


def apply(model: ir.Model, step: Step) -> int:
    """Apply one step, and return in how many places it changed the model; the caller drops the proof."""
    function = _function(step.edit)
    changed = 0
    for args, named in _arguments(step):
        call = _bound(step.edit, function, (model, *args), {**dict(step.edit.options), **named})
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
        raise InputError(
            f"the recipe '{path}' cannot be read: {error.strerror}", next_step="check the path and its permissions"
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(f"the recipe '{path}' is no text", next_step="give a YAML file in UTF-8") from error
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
            next_step="correct the line named above",
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
        "name": isinstance(value, (str, int, list, ir.Node, ir.Value)) and not isinstance(value, bool) and value != [],
        "optional name": value is None or isinstance(value, (str, ir.Function)),
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


def _bound(
    edit: Edit, function: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any]
) -> inspect.BoundArguments:
    """The arguments of an edit, each of the type that its function takes."""
    try:
        bound = inspect.signature(function).bind(*args, **named)
    except TypeError as error:
        fields = list(inspect.signature(function).parameters)[1:]
        raise InputError(
            f"the edit '{edit.name}' does not fit: {error}", next_step=f"it takes {', '.join(fields) or 'nothing'}"
        ) from error
    check_types(f"the edit '{edit.name}'", function, bound, text=True)
    return bound


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
