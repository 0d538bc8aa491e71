"""Load the model that is named on the command line, and run the user's own Python for it."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
import inspect
import itertools
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from torchport.capture.exported_programs import load_program, refuse_old
from torchport.capture.origins import is_user_file
from torchport.capture.pytorch_files import kind_of, load_pickle, load_script
from torchport.errors import SourceError, TorchportError, close_names

# The model, from what was written on the command line.
#
#     model.py:Net               a class, an instance, or a function that makes one
#     package.module:object      the same, from something that can be imported
#     model.pt                   TorchScript
#     model.pt2                  a saved ExportedProgram
#
# A file's own code runs when it is imported, as it would under `python`; a `.pt` or `.pt2` runs nothing (see
# `archives` and `programs`) unless the caller vouches for it.

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
    close = close_names(wrong, known)
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
        raise SourceError(
            f"{path.name} cannot be read: {error.strerror}",
            where=str(path),
            next_step="check the path and its permissions",
        ) from error
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
        raise SourceError(
            f"{label} is a class, but not an nn.Module",
            where=label,
            next_step="give a subclass of nn.Module, an instance, or a function that returns one",
        )
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


# Run the user's own Python, and when it fails show the user's own lines, not ours.
#
# A file is imported under a private name of its own, so that two files called `model.py` do not get in each
# other's way, and is registered in `sys.modules`, so that dataclasses, pickle and `inspect.getsource` work in
# it. Its folder goes to the front of `sys.path` and stays there: models import their siblings late, too,
# inside `forward`.

_PACKAGE = str(Path(__file__).resolve().parents[1])
_numbers = itertools.count(1)


def import_file(path: Path) -> ModuleType:
    """The file as a module, under a name no other module has."""
    path = path.resolve()
    _put_first(str(path.parent))
    stem = "".join(c if c.isalnum() else "_" for c in path.stem)
    name = f"_torchport_source_{next(_numbers)}_{stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise SourceError(
            f"{path.name} is not a Python file",
            where=str(path),
            next_step="give file.py:object, package.module:object, or a .pt or .pt2 file",
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with running_user_code(f"importing {path.name} failed"):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def import_name(name: str, spec: str) -> ModuleType:
    """The module of that dotted name, the current folder being searched first."""
    _put_first(os.getcwd())
    importlib.invalidate_caches()
    with running_user_code(f"importing {name} failed"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name and f"{name}.".startswith(f"{error.name}."):
                raise SourceError(
                    f"there is no module or file '{error.name}'",
                    where=spec,
                    next_step="give file.py:object, or go to the folder that holds the package",
                ) from error
            raise


def _put_first(folder: str) -> None:
    if folder not in sys.path and not (folder == os.getcwd() and "" in sys.path):
        sys.path.insert(0, folder)


@contextlib.contextmanager
def running_user_code(failure: str, *, passing: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn whatever the user's code raises, `SystemExit` included, into a `SourceError` with their traceback.

    Args:
        failure: what failed, e.g. ``importing model.py failed``.
        passing: exceptions that the caller handles itself.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except BaseException as error:
        if isinstance(error, (KeyboardInterrupt, TorchportError, *passing)):
            raise
        raise _theirs(failure, error) from error


def _theirs(failure: str, error: BaseException) -> SourceError:
    told = traceback.TracebackException.from_exception(error)
    where = _last_line(told)
    _strip(told)
    kind = type(error).__name__
    text = str(error).strip().splitlines()
    lines = "".join(told.format()).rstrip()
    return SourceError(
        f"{failure}: {kind}" + (f": {text[0]}" if text else "") + f"\n{lines}",
        where=where,
        next_step=_advice(error),
    )


def _last_line(told: traceback.TracebackException) -> str | None:
    if getattr(told, "lineno", None):  # a SyntaxError: its frames are ours, its place is theirs
        return f"{told.filename}:{told.lineno}"
    frames = [f for f in told.stack if is_user_file(f.filename)] or [f for f in told.stack if not _is_ours(f)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else None


def _strip(told: traceback.TracebackException | None) -> None:
    """Take our frames and importlib's out, through the whole chain of causes."""
    while told is not None:
        told.stack = traceback.StackSummary.from_list([f for f in told.stack if not _is_ours(f)])
        told = told.__cause__ or told.__context__


def _is_ours(frame: traceback.FrameSummary) -> bool:
    name = frame.filename
    return name.startswith((_PACKAGE + os.sep, "<frozen importlib")) or name == importlib.__file__


def _advice(error: BaseException) -> str:
    if isinstance(error, ImportError) and "relative import" in str(error):
        return "the file is part of a package: give it as package.module:object, from the folder above"
    if isinstance(error, ModuleNotFoundError):
        return f"install '{error.name}', or run torchport in the environment that has it"
    if isinstance(error, SystemExit):
        return "the file ends the program: put its main part under if __name__ == '__main__':"
    return "make the file run under plain python first"
