"""Calls of a model, each saved as a sample: what went in, what came out, and the arguments that are no tensors."""

from __future__ import annotations

import dataclasses
import inspect
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchport.capture.structure import Call, join, output_tensors, signature_of, take_apart
from torchport.errors import InputError, OptionError, SaveError, first_line
from torchport.inputs.samples import OUTPUT, Sample, save_call
from torchport.tensors import Array, to_numpy, to_torch

_LONGEST = 200  # characters of an argument that is noted, not replayed
_WRAPPERS = ("DataParallel", "DistributedDataParallel")


@dataclasses.dataclass(frozen=True)
class Begun:
    """A call that has begun: its number, and its inputs as they were before the model could change them."""

    number: int
    arrays: Mapping[str, Array]
    arguments: Mapping[str, Any]
    given: Mapping[str, Any]


class SavedCalls:
    """A folder that calls are saved to, ``call_00001.npz`` first; several threads may call at once.

    Args:
        folder: made if it is not there.
        limit: save that many calls at most; all if None.

    Raises:
        OptionError: the limit is no number of calls.
        SaveError: the folder cannot be made, or holds an earlier recording.
    """

    def __init__(self, folder: str | os.PathLike[str], limit: int | None) -> None:
        if limit is not None and limit < 1:
            raise OptionError(f"a limit of {limit} calls records nothing", next_step="give 1 or more")
        self.folder = _made(Path(folder))
        self.limit = limit
        self.paths: list[Path] = []
        self._begun = 0
        self._lock = threading.Lock()
        self._process = os.getpid()

    @property
    def count(self) -> int:
        """How many calls were saved."""
        return len(self.paths)

    def begin(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Begun | None:
        """Take a copy of the inputs; None if this call is not to be saved.

        A worker process that was forked off has its own calls, and a compiler that only looks at the model has none.
        """
        looked_at = torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined]
        if looked_at or os.getpid() != self._process:
            return None
        if self._is_full():
            return None
        names, tensors, arguments, given = _taken_apart(unwrapped(module), args, kwargs)
        arrays, unsaved = _arrays(names, tensors)
        if tensors and not arrays:  # under vmap or grad: no tensor has numbers of its own
            return None
        number = self._next()
        copies = {name: array.copy() for name, array in arrays.items()}
        return Begun(number, copies, arguments | unsaved, given) if number else None

    def _is_full(self) -> bool:
        return self.limit is not None and self._begun >= self.limit

    def _next(self) -> int:
        """The number of the next call, 0 if the limit was reached by another thread in the meantime."""
        with self._lock:
            if self._is_full():
                return 0
            self._begun += 1
            return self._begun

    def end(self, begun: Begun | None, answer: Any) -> None:
        """Save the call; `answer` is None if the model failed, whose inputs are then worth having all the more."""
        if begun is None:
            return
        names, tensors = output_tensors(answer)
        outputs, unsaved = _arrays(names, tensors)
        notes = {**begun.arguments, **{OUTPUT + name: note for name, note in unsaved.items()}}
        path = self.folder / f"call_{begun.number:05}.npz"
        save_call(path, Sample(path.name, begun.arrays, outputs, notes, begun.given))
        with self._lock:
            self.paths.append(path)

    def drop(self) -> None:
        """Forget the calls saved so far, files and all, and begin again."""
        with self._lock:
            for path in self.paths:
                path.unlink(missing_ok=True)
            self.paths.clear()
            self._begun = 0


def unwrapped(module: Any) -> Any:
    """The user's own module inside what `torch.compile` and data parallelism put around it."""
    while True:
        inner = getattr(module, "_orig_mod", None)
        if inner is None and type(module).__name__ in _WRAPPERS:
            inner = module.module
        if inner is None:
            return module
        module = inner


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SaveError(
            f"the folder '{folder}' cannot be made: {error.strerror}", next_step="choose another folder"
        ) from error
    if any(folder.glob("call_*.npz")):
        raise SaveError(
            f"'{folder}' holds an earlier recording", next_step="give another folder, or remove its call_*.npz"
        )
    return folder


def _taken_apart(
    target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[list[str], list[torch.Tensor], dict[str, Any], dict[str, Any]]:
    """The tensors by the names `torchport export` gives them, the other arguments, and how all of it was given."""
    try:
        call = Call(target, args, kwargs)
    except InputError:  # the model refuses these arguments or has no signature; the former it says better itself
        tensors: list[torch.Tensor] = []
        take_apart((*args, *kwargs.values()), "", tensors)
        return [f"arr_{i}" for i in range(len(tensors))], tensors, {}, {}
    return call.names, call.tensors, noted(call), described(target, args, kwargs)


def noted(call: Call) -> dict[str, Any]:
    """The arguments of a call that are no tensors, for people to read."""
    return {fixed.name: _noted(fixed.value) for fixed in call.fixed}


def described(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """How each argument is given, by parameter, in words that JSON has: `rebuilt` makes the arguments again.

    Example:
        >>> described(net, (x, [state, 2]), {})
        {'x': {'tensor': 'x'}, 'states': {'list': [{'tensor': 'states.0'}, {'value': 2}]}}
    """
    signature = signature_of(target)
    spread = [p.name for p in signature.parameters.values() if p.kind is inspect.Parameter.VAR_KEYWORD]
    bound = signature.bind(*args, **kwargs).arguments
    return {name: _described(value, "" if name in spread else name) for name, value in bound.items()}


def _described(value: Any, name: str) -> dict[str, Any]:
    if isinstance(value, torch.Tensor):
        return {"tensor": name}
    if type(value) in (dict, OrderedDict) and all(type(key) in (str, int) for key in value):
        return {"dict": [[key, _described(child, join(name, key))] for key, child in value.items()]}
    if type(value) in (list, tuple, torch.Size):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_described(child, join(name, i)) for i, child in enumerate(value)]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"value": value}
    return {"unsaved": type(value).__name__}


def rebuilt(target: Any, sample: Sample) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a recorded call, positional and by name.

    Raises:
        InputError: one of them is an object of which only the tensors were saved.

    Example:
        >>> args, kwargs = rebuilt(net, sample)
        >>> net(*args, **kwargs)
    """
    arguments = OrderedDict((name, _rebuilt(form, name, sample)) for name, form in sample.given.items())
    bound = inspect.BoundArguments(signature_of(target), arguments)
    return bound.args, bound.kwargs


def _rebuilt(form: Mapping[str, Any], argument: str, sample: Sample) -> Any:
    ((kind, what),) = form.items()
    if kind == "value":
        return what
    if kind == "tensor" and what in sample.arrays:
        return to_torch(np.asarray(sample.arrays[what]))
    if kind == "dict":
        return {key: _rebuilt(child, argument, sample) for key, child in what}
    if kind in ("list", "tuple"):
        items = [_rebuilt(child, argument, sample) for child in what]
        return items if kind == "list" else tuple(items)
    lost = f"'{what}' has no numbers" if kind == "tensor" else f"of a {what} only the tensors were"
    raise InputError(
        f"the argument '{argument}' cannot be given again: {lost} in the recording",
        where=sample.name,
        next_step="compare with what was recorded (the .npz as the first side), or give inputs= from Python",
    )


def _noted(value: Any) -> Any:
    if isinstance(value, (bool, int, float)) or (isinstance(value, str) and len(value) <= _LONGEST):
        return value
    return repr(value)[:_LONGEST]


def _arrays(names: list[str], tensors: list[torch.Tensor]) -> tuple[dict[str, Array], dict[str, str]]:
    """The tensors as arrays; those that have no numbers to save, sparse or fake ones, as notes."""
    arrays: dict[str, Array] = {}
    unsaved: dict[str, str] = {}
    for name, tensor in zip(names, tensors, strict=True):
        try:
            arrays[name] = to_numpy(tensor)
        except (InputError, RuntimeError, TypeError) as error:
            unsaved[name] = f"not saved: {first_line(error)}"
    return arrays, unsaved
