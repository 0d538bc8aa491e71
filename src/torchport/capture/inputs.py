"""The values of inputs: random numbers, files, and what a model's `example_inputs()` gives.

How they are written is read by `input_text`. Files may come from anywhere: numpy's are read without its
pickles, torch's with `weights_only=True`, and no more memory is taken than the machine has.
"""

from __future__ import annotations

import math
import os
import stat
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from torchport.capture.archives import load_weights
from torchport.capture.input_text import InputSpec, Random, Scalar, Stored, is_name
from torchport.capture.members import check_zip, first_line
from torchport.errors import InputError, SourceError
from torchport.tensors import COMPLEX, DTYPES, INTEGERS, numpy_dtype, to_torch

_DAMAGE = (ValueError, OSError, EOFError, SyntaxError, MemoryError, OverflowError)  # what numpy raises over a bad array

Args = tuple[tuple[Any, ...], dict[str, Any]]


def build_inputs(specs: Sequence[InputSpec], *, seed: int = 0) -> Args:
    """The positional and the keyword arguments that the specs describe.

    The numbers depend on the seed and on the place of the spec in the list, and on nothing else.

    Raises:
        InputError: a name comes twice, a file cannot be read, or a tensor does not fit into memory.
    """
    if seed < 0:
        raise InputError(f"the seed {seed} is negative", next_step="give a seed of 0 or more")
    args: list[Any] = []
    named: dict[tuple[str, ...], Any] = {}
    for place, spec in enumerate(specs):
        more, by_name = _values(spec, np.random.default_rng([seed, place]))
        args += more
        for name, value in by_name.items():
            _add(named, tuple(name.split(".")), value)
    return tuple(args), _nest(named)


def from_example(value: object) -> Args:
    """The arguments that an `example_inputs()` means by what it returned.

    A tensor is the only argument, a tuple or list are the positional ones, a mapping the keyword ones, and a
    pair of a tuple and a dict is both.
    """
    import torch

    if isinstance(value, torch.Tensor):
        return (value,), {}
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], tuple) and _is_named(value[1]):
        return value[0], dict(value[1])
    if isinstance(value, tuple | list):
        return tuple(value), {}
    if _is_named(value):
        return (), dict(value)  # type: ignore[call-overload]
    raise InputError(
        f"the example inputs are a {type(value).__name__}"
        + (" with keys that are no names" if isinstance(value, Mapping) else ""),
        where="example_inputs()",
        next_step="return a tensor, a tuple of arguments, a dict of named arguments, or (tuple, dict)",
    )


def _is_named(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)


def _values(spec: InputSpec, rng: np.random.Generator) -> tuple[list[Any], dict[str, Any]]:
    """What one spec adds to the positional and to the named arguments."""
    if isinstance(spec.value, Stored):
        return _from_file(spec.name, spec.value)
    return _one(spec.name, spec.value.value if isinstance(spec.value, Scalar) else _random(spec.value, rng))


def _one(name: str | None, value: Any) -> tuple[list[Any], dict[str, Any]]:
    return ([value], {}) if name is None else ([], {name: value})


def _random(spec: Random, rng: np.random.Generator) -> Any:
    size = math.prod(spec.shape) * numpy_dtype(spec.dtype).itemsize
    too_large = InputError(f"a tensor of {size:,} bytes does not fit into memory", where=f"--input {spec}")
    if size > _memory():
        raise too_large
    try:
        return to_torch(np.asarray(_draw(spec, rng)).astype(numpy_dtype(spec.dtype), copy=False))
    except MemoryError as error:
        raise too_large from error


def _draw(spec: Random, rng: np.random.Generator) -> Any:
    if spec.dtype == "bool":
        return rng.integers(0, 2, size=spec.shape, dtype=np.uint8)
    if spec.dtype in INTEGERS:
        low, high = (0, 1) if spec.low is None or spec.high is None else (int(spec.low), int(spec.high))
        return rng.integers(low, high, size=spec.shape, dtype=np.dtype(spec.dtype).type, endpoint=True)
    if spec.dtype in COMPLEX:
        return rng.standard_normal(spec.shape) + 1j * rng.standard_normal(spec.shape)
    precision: Any = np.float64 if spec.dtype == "float64" else np.float32
    if spec.low is None or spec.high is None:
        return rng.standard_normal(spec.shape, dtype=precision)
    # not low + (high - low) * share: that overflows where the ends are the dtype's own
    share = rng.random(spec.shape, dtype=precision)
    return (1 - share) * precision(spec.low) + share * precision(spec.high)


def _memory() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        return 1 << 40


def _from_file(name: str | None, stored: Stored) -> tuple[list[Any], dict[str, Any]]:
    path = _regular(stored)
    if path.suffix.lower() == ".npy":
        value = _npy(path)
    elif path.suffix.lower() == ".npz":
        arrays = _npz(path, stored.key)
        if name is None and stored.key is None:
            return [], _named(arrays, path)
        value = _only(arrays, name, path)
    else:
        value = _pt(path)
        if name is None:
            args, kwargs = from_example(value)
            return list(args), _named(kwargs, path)
    return _one(name, value)


def _named(values: dict[str, Any], path: Path) -> dict[str, Any]:
    if bad := [name for name in values if not is_name(name)]:
        raise _unreadable(path, f"'{bad[0][:80]}' is no name of an argument")
    return values


def _regular(stored: Stored) -> Path:
    path = Path(stored.path)
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        raise InputError(f"there is no file {stored.path}", where=f"--input {stored}") from error
    if not stat.S_ISREG(mode):
        raise InputError(f"{stored.path} is not a regular file", where=f"--input {stored}")
    if path.stat().st_size == 0:
        raise _unreadable(path, "it is empty")
    return path


def _unreadable(path: Path, reason: str) -> InputError:
    return InputError(
        f"{path.name} cannot be read: {reason}",
        where=str(path),
        next_step="save arrays with numpy.save or numpy.savez, tensors with torch.save",
    )


def _npy(path: Path) -> Any:
    try:
        # a memory map checks the header's claims against the file's size before any memory is taken
        return _tensor(np.load(path, mmap_mode="r", allow_pickle=False), path)
    except _DAMAGE as error:
        raise _unreadable(path, first_line(error)) from error


_NOTE = "__"  # before what a recorded call gave, and what is noted of it


def _npz(path: Path, key: str | None) -> dict[str, Any]:
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > _memory():
            raise _unreadable(path, f"it unpacks to {size:,} bytes, more than the memory")
        with np.load(path, allow_pickle=False) as arrays:
            if key is not None and key not in arrays.files:
                raise _unreadable(path, f"it has no '{key}', only {', '.join(arrays.files) or 'nothing'}")
            given = [n for n in arrays.files if not n.startswith(_NOTE)]
            return {n: _tensor(arrays[n], path) for n in (given if key is None else [key])}
    except (*_DAMAGE, zipfile.error, zlib.error, NotImplementedError, RuntimeError, KeyError, AttributeError) as error:
        raise _unreadable(path, first_line(error)) from error


def _only(arrays: dict[str, Any], name: str | None, path: Path) -> Any:
    if len(arrays) == 1:
        return next(iter(arrays.values()))
    raise InputError(
        f"{path.name} has {len(arrays)} arrays: {', '.join(arrays)}",
        where=f"--input {name}={path}",
        next_step=f"say which one: {name}={path}:{next(iter(arrays), 'key')}",
    )


def _tensor(array: Any, path: Path) -> Any:
    if not isinstance(array, np.ndarray) or array.dtype.name not in DTYPES:
        raise _unreadable(path, f"its dtype {getattr(array, 'dtype', type(array))} is none a tensor can have")
    return to_torch(np.array(array, dtype=array.dtype.newbyteorder("="), order="C"))


def _pt(path: Path) -> Any:
    try:
        if zipfile.is_zipfile(path):
            check_zip(path)
        return load_weights(path)
    except SourceError as error:
        raise _unreadable(path, error.what) from error
    except Exception as error:
        raise _unreadable(path, f"it holds more than tensors, or is broken ({first_line(error)[:120]})") from error


def _add(named: dict[tuple[str, ...], Any], parts: tuple[str, ...], value: Any) -> None:
    name = ".".join(parts)
    if parts in named:
        raise InputError(f"input '{name}' is given twice", where=f"--input {name}=…")
    for other in named:
        short, long = sorted((other, parts), key=len)
        if long[: len(short)] == short:
            raise InputError(
                f"'{'.'.join(short)}' is given as a whole and in part, as '{'.'.join(long)}'",
                where=f"--input {name}=…",
            )
    named[parts] = value


def _nest(named: Mapping[tuple[str, ...], Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for parts, value in named.items():
        branch = tree
        for part in parts[:-1]:
            branch = branch.setdefault(part, _Branch())
        branch[parts[-1]] = value
    return {name: _grown(value, name) for name, value in tree.items()}


class _Branch(dict[str, Any]):
    """A dict made here, not one that came as a value."""


def _grown(value: Any, name: str) -> Any:
    """Branches whose keys are all numbers become lists."""
    if not isinstance(value, _Branch):
        return value
    grown = {key: _grown(item, f"{name}.{key}") for key, item in value.items()}
    numbers = [key for key in grown if key.isdigit()]
    if not numbers:
        return grown
    if sorted(numbers, key=int) != [str(i) for i in range(len(grown))]:
        raise InputError(
            f"the items of '{name}' are not numbered 0, 1, 2, …: {', '.join(grown)}",
            where=f"--input {name}.…",
        )
    return [grown[str(i)] for i in range(len(grown))]
