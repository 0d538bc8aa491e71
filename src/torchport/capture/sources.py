"""The model, from what was written on the command line.

    model.py:Net               a class, an instance, or a function that makes one
    package.module:object      the same, from something that can be imported
    model.pt                   TorchScript
    model.pt2                  a saved ExportedProgram

A file's own code runs when it is imported, as it would under `python`; a `.pt` or `.pt2` runs nothing (see
`archives` and `programs`) unless the caller vouches for it.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import itertools
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from torchport.capture.archives import kind_of, load_pickle, load_script
from torchport.capture.programs import load_program, refuse_old
from torchport.capture.user_code import import_file, import_name, running_user_code
from torchport.errors import SourceError

_SAVED = (".pt", ".pth", ".ts", ".pt2")
_FORMS = "give file.py:object, package.module:object, a TorchScript .pt or a .pt2"


@dataclasses.dataclass(frozen=True)
class Source:
    """A model and what to call it.

    Attributes:
        model: an `nn.Module`, a TorchScript module or function, an `ExportedProgram`, or a function.
        label: how to call it in messages, e.g. ``model.py:Net``.
        example_inputs: gives inputs the model takes, if its author wrote one (see `inputs.from_example`).
    """

    model: object
    label: str
    example_inputs: Callable[[], object] | None = None


def load_source(spec: str, *, trust: bool = False) -> Source:
    """Find, import or open the model that `spec` names.

    Args:
        spec: ``file.py:object``, ``package.module:object``, or the path of a `.pt`, `.pth`, `.ts` or `.pt2`.
        trust: open pickles too; they run whatever code they ask for.

    Raises:
        SourceError: there is no such model, or its own code failed.
        UntrustedError: the file would run code that came with it, and `trust` is off.

    Example:
        >>> load_source("model.py:Net").label
        'model.py:Net'
    """
    place, name = split_spec(spec)
    if place.lower().endswith(_SAVED):
        return _from_saved(_existing(place), name, trust=trust)
    if place.lower().endswith(".onnx"):
        raise SourceError(
            f"{Path(place).name} is already ONNX",
            where=spec,
            next_step="use torchport verify or torchport run on it",
        )
    module = _import(place, spec)
    label = f"{Path(place).name if place.lower().endswith('.py') else place}:{name}"
    if not name:
        raise SourceError(
            f"which object of {place}?", where=spec, next_step=_offer(module, place) or "give file.py:object"
        )
    model = _as_model(_find(module, name, place), label)
    return Source(model, label, _example_inputs(module, model))


def split_spec(spec: str) -> tuple[str, str]:
    r"""The place and the object's name, split at the last colon; the name is empty if there is none.

    The colon of a drive is not that one: ``C:\x.py:Net`` is the file ``C:\x.py``, object ``Net``.
    """
    place, colon, name = spec.rpartition(":")
    if not colon or "/" in name or "\\" in name:
        return spec, ""
    if len(place) == 1 and name.lower().endswith((".py", ".onnx", *_SAVED)):
        return spec, ""
    return place, name


def _existing(place: str) -> Path:
    path = Path(place)
    if os.path.isdir(place):
        raise SourceError(f"{place} is a folder, not a model", where=place, next_step=_FORMS)
    if os.path.exists(place):  # not Path.exists, which raises on a name too long to be one
        return path
    names = [p.name for p in itertools.islice(path.parent.iterdir(), 10_000)] if os.path.isdir(path.parent) else []
    hint = _did_you_mean(path.name, names, lambda close: str(path.parent / close)) or _FORMS
    raise SourceError(f"there is no file {place}", where=str(path.parent.absolute()), next_step=hint)


def _did_you_mean(wrong: str, known: list[str], write: Callable[[str], str]) -> str:
    close = difflib.get_close_matches(wrong, known, n=3)
    return "did you mean " + " or ".join(map(write, close)) + "?" if close else ""


def _from_saved(path: Path, name: str, *, trust: bool) -> Source:
    if name:
        raise SourceError(
            f"{path.name} is one model: it has no object '{name}'",
            where=f"{path}:{name}",
            next_step=f"give {path}",
        )
    try:
        model = _open(path, trust=trust)
    except OSError as error:
        raise SourceError(f"{path.name} cannot be read: {error.strerror}", where=str(path)) from error
    return Source(model, path.name, _own_inputs(model))


def _open(path: Path, *, trust: bool) -> Any:
    kind = kind_of(path)
    if kind == "script":
        return load_script(path, trust=trust)
    if kind == "pickle":
        return load_pickle(path, trust=trust)
    if kind == "old program" and not trust:
        refuse_old(path)
    return load_program(path, trust=trust)


def _own_inputs(model: Any) -> Callable[[], object] | None:
    return _giving(getattr(model, "example_inputs", None))


def _giving(inputs: Any) -> Callable[[], object] | None:
    return inputs if inputs is None or callable(inputs) else lambda: inputs


def _import(place: str, spec: str) -> ModuleType:
    if place.lower().endswith(".py"):
        return import_file(_existing(place))
    if re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", place) and not (place == spec and os.path.exists(place)):
        return import_name(place, spec)
    _existing(place)
    raise SourceError(f"{place} is no model that can be read here", where=spec, next_step=_FORMS)


def _find(module: ModuleType, name: str, place: str) -> Any:
    found: Any = module
    for part in name.split("."):
        with running_user_code(f"reading {name} of {place} failed", passing=(AttributeError,)):
            try:
                found = getattr(found, part)
            except AttributeError as error:
                raise _missing(module, found, part, place) from error
    return found


def _missing(module: ModuleType, holder: Any, part: str, place: str) -> SourceError:
    names = [n for n in dir(holder) if not n.startswith("__")]
    where = place if holder is module else f"{place}:{getattr(holder, '__name__', type(holder).__name__)}"
    hints = [_did_you_mean(part, names, lambda close: f"'{close}'"), _offer(module, place)]
    advice = " ".join(filter(None, hints)) or _FORMS
    return SourceError(f"there is no '{part}' in {where}", where=place, next_step=advice)


def _offer(module: ModuleType, place: str) -> str:
    """The models the module has of its own, as they would be written."""
    import torch

    models = [
        name
        for name, value in vars(module).items()
        if isinstance(value, torch.nn.Module)
        or (isinstance(value, type) and issubclass(value, torch.nn.Module) and value.__module__ == module.__name__)
    ]
    more = ", …" if len(models) > 8 else ""
    return "it has " + ", ".join(f"{place}:{name}" for name in models[:8]) + more if models else ""


def _as_model(found: Any, label: str) -> Any:
    if _is_model(found):
        return found
    if isinstance(found, type):
        return _instance(found, label)
    if not callable(found):
        raise SourceError(
            f"{label} is a {type(found).__name__}, which is no model",
            where=label,
            next_step="name an nn.Module, its class, or a function that makes one",
        )
    if _required(found) != []:
        return found  # a function that takes tensors
    with running_user_code(f"{label} failed to make the model"):
        made = found()
    if _is_model(made) or (inspect.isroutine(made) and _required(made)):
        return made
    raise SourceError(
        f"{label} was called to make the model and returned a {type(made).__name__}",
        where=label,
        next_step="let it return an nn.Module; a function that is the model itself takes tensors",
    )


def _is_model(value: object) -> bool:
    import torch

    return isinstance(value, torch.nn.Module | torch.export.ExportedProgram | torch.jit.ScriptFunction)


def _instance(cls: type, label: str) -> Any:
    import torch

    if not issubclass(cls, torch.nn.Module):
        raise SourceError(f"{label} is a class, but not an nn.Module", where=label)
    if needed := _required(cls):
        raise SourceError(
            f"{label} cannot be made without {', '.join(needed)}",
            where=label,
            next_step="write a function that makes it, e.g. def make(): return "
            f"{cls.__name__}({', '.join(f'{n}=…' for n in needed)}), and give file.py:make",
        )
    with running_user_code(f"{label}() failed"):
        return cls()


def _required(function: Any) -> list[str] | None:
    """The parameters without a default; None if the function does not say (a builtin: no factory)."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):
        return None
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in variadic]


def _example_inputs(module: ModuleType, model: Any) -> Callable[[], object] | None:
    """The `example_inputs` at module level, else the model's own."""
    found = vars(module).get("example_inputs")
    return _own_inputs(model) if found is None else _giving(found)
