"""Create input arrays from `--input` specs: random numbers, single values and files.

Files may come from anywhere: numpy's are read without its pickles, and no more memory is taken than the machine has.
PyTorch's files are read by a function that the caller passes in, so that torch is not imported here.
"""

from __future__ import annotations

import math
import os
import stat
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from torchport.errors import InputError, first_line
from torchport.inputs.spec import InputSpec, Random, Scalar, Stored, is_name
from torchport.results import TensorInfo
from torchport.tensors import COMPLEX, DTYPES, INTEGERS, Array, numpy_dtype

_DAMAGE = (ValueError, OSError, EOFError, SyntaxError, MemoryError, OverflowError)  # what numpy raises over a bad array

Args = tuple[tuple[Any, ...], dict[str, Any]]
Values = tuple[list[Any], dict[str, Any]]  # that one spec adds to the positional and to the named arguments
PtReader = Callable[[Path, str | None], Values]  # of a file of torch.save, given for an input of this name or for all


def create_inputs(specs: Sequence[InputSpec], *, seed: int = 0, read_pt: PtReader | None = None) -> Args:
    """Return the positional and the keyword arguments that the specs describe, with arrays for tensors.

    The numbers depend on the seed and on the position of the spec in the list, and on nothing else.

    Raises:
        InputError: a name comes twice, a file cannot be read, or a tensor does not fit into memory.
    """
    if seed < 0:
        raise InputError(f"the seed {seed} is negative", next_step="give a seed of 0 or more")
    args: list[Any] = []
    named: dict[tuple[str, ...], Any] = {}
    for place, spec in enumerate(specs):
        more, by_name = _values(spec, np.random.default_rng([seed, place]), read_pt)
        args += more
        for name, value in by_name.items():
            _add(named, tuple(name.split(".")), value)
    return tuple(args), _nest(named)


def _values(spec: InputSpec, rng: np.random.Generator, read_pt: PtReader | None) -> Values:
    if isinstance(spec.value, Stored):
        return _from_file(spec.name, spec.value, read_pt)
    return _one(spec.name, spec.value.value if isinstance(spec.value, Scalar) else _random(spec.value, rng))


def _one(name: str | None, value: Any) -> Values:
    return ([value], {}) if name is None else ([], {name: value})


def _random(spec: Random, rng: np.random.Generator) -> Any:
    size = math.prod(spec.shape) * numpy_dtype(spec.dtype).itemsize
    too_large = InputError(f"a tensor of {size:,} bytes does not fit into memory", where=f"--input {spec}")
    if size > _memory():
        raise too_large
    try:
        return np.asarray(_draw(spec, rng)).astype(numpy_dtype(spec.dtype), copy=False)
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


def _from_file(name: str | None, stored: Stored, read_pt: PtReader | None) -> Values:
    path = _regular(stored)
    if path.suffix.lower() == ".npy":
        value = _npy(path)
    elif path.suffix.lower() == ".npz":
        arrays = _npz(path, stored.key)
        if name is None and stored.key is None:
            return [], _named(arrays, path)
        value = _only(arrays, name, path)
    elif read_pt is None:
        raise unreadable(path, "only .npy and .npz are read here")
    else:
        args, named = read_pt(path, name)
        return args, named if name is not None else _named(named, path)
    return _one(name, value)


def _named(values: dict[str, Any], path: Path) -> dict[str, Any]:
    if bad := [name for name in values if not is_name(name)]:
        raise unreadable(path, f"'{bad[0][:80]}' is no name of an argument")
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
        raise unreadable(path, "it is empty")
    return path


def unreadable(path: Path, reason: str) -> InputError:
    """Return the error for a file whose content is no array."""
    return InputError(
        f"{path.name} cannot be read: {reason}",
        where=str(path),
        next_step="save arrays with numpy.save or numpy.savez, tensors with torch.save",
    )


def _npy(path: Path) -> Any:
    try:
        # a memory map checks the header's claims against the file's size before any memory is taken
        return _array(np.load(path, mmap_mode="r", allow_pickle=False), path)
    except _DAMAGE as error:
        raise unreadable(path, first_line(error)) from error


_NOTE = "__"  # before what a recorded call gave, and what is noted of it


def _npz(path: Path, key: str | None) -> dict[str, Any]:
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > _memory():
            raise unreadable(path, f"it unpacks to {size:,} bytes, more than the memory")
        with np.load(path, allow_pickle=False) as arrays:
            if key is not None and key not in arrays.files:
                raise unreadable(path, f"it has no '{key}', only {', '.join(arrays.files) or 'nothing'}")
            given = [n for n in arrays.files if not n.startswith(_NOTE)]
            return {n: _array(arrays[n], path) for n in (given if key is None else [key])}
    except (*_DAMAGE, zipfile.error, zlib.error, NotImplementedError, RuntimeError, KeyError, AttributeError) as error:
        raise unreadable(path, first_line(error)) from error


def _only(arrays: dict[str, Any], name: str | None, path: Path) -> Any:
    if len(arrays) == 1:
        return next(iter(arrays.values()))
    raise InputError(
        f"{path.name} has {len(arrays)} arrays: {', '.join(arrays)}",
        where=f"--input {name}={path}",
        next_step=f"say which one: {name}={path}:{next(iter(arrays), 'key')}",
    )


def _array(array: Any, path: Path) -> Any:
    if not isinstance(array, np.ndarray) or array.dtype.name not in DTYPES:
        raise unreadable(path, f"its dtype {getattr(array, 'dtype', type(array))} is none a tensor can have")
    return np.array(array, dtype=array.dtype.newbyteorder("="), order="C")


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


_EXAMPLE_SIZE = 2  # of a dimension that may vary


def made_up(infos: Sequence[TensorInfo]) -> list[Array]:
    """Random inputs of these dtypes and shapes, dimensions that may vary at size 2."""
    for info in infos:
        if info.dtype == "string" or "(" in info.dtype:
            raise InputError(f"input '{info.name}' is {info.dtype}, of which no example can be made")
        if info.shape is None:
            raise InputError(f"input '{info.name}' has no shape to make an example from", next_step="give --input")
    shapes = [[d if isinstance(d, int) else _EXAMPLE_SIZE for d in i.shape or ()] for i in infos]
    specs = [InputSpec.tensor(None, i.dtype, s) for i, s in zip(infos, shapes, strict=True)]
    return list(create_inputs(specs)[0])
