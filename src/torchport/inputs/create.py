"""Create input arrays from `--input` specs: random numbers, single values and files.

Files may come from anywhere: numpy's are read without its pickles, and no more memory is taken than the machine has.
PyTorch's files are read by a function that the caller passes in, so that torch is not imported here.
"""

from __future__ import annotations

import math
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from torchport.errors import InputError
from torchport.inputs.arrays import memory, read_arrays, unreadable
from torchport.inputs.binding import nested
from torchport.inputs.spec import InputSpec, Random, Scalar, Stored, is_name
from torchport.results import TensorInfo
from torchport.tensors import COMPLEX, DTYPES, INTEGERS, Array, numpy_dtype

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
    named: dict[str, Any] = {}
    for place, spec in enumerate(specs):
        more, by_name = _values(spec, np.random.default_rng([seed, place]), read_pt)
        args += more
        if twice := [name for name in by_name if name in named]:
            raise InputError(f"input '{twice[0]}' is given twice", where=f"--input {twice[0]}=…")
        named |= by_name
    return tuple(args), nested(named)


def _values(spec: InputSpec, rng: np.random.Generator, read_pt: PtReader | None) -> Values:
    if isinstance(spec.value, Stored):
        return _from_file(spec.name, spec.value, read_pt)
    return _one(spec.name, spec.value.value if isinstance(spec.value, Scalar) else _random(spec.value, rng))


def _one(name: str | None, value: Any) -> Values:
    return ([value], {}) if name is None else ([], {name: value})


def _random(spec: Random, rng: np.random.Generator) -> Any:
    size = math.prod(spec.shape) * numpy_dtype(spec.dtype).itemsize
    too_large = InputError(f"a tensor of {size:,} bytes does not fit into memory", where=f"--input {spec}")
    if size > memory():
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


def _from_file(name: str | None, stored: Stored, read_pt: PtReader | None) -> Values:
    path = _regular(stored)
    if path.suffix.lower() in (".npy", ".npz"):
        arrays = {n: _tensor(a, path) for n, a in read_arrays(path, stored.key).items() if not n.startswith(_NOTE)}
        if name is None and stored.key is None and path.suffix.lower() == ".npz":
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


_NOTE = "__"  # before what a recorded call gave, and what is noted of it


def _only(arrays: dict[str, Any], name: str | None, path: Path) -> Any:
    if len(arrays) == 1:
        return next(iter(arrays.values()))
    raise InputError(
        f"{path.name} has {len(arrays)} arrays: {', '.join(arrays)}",
        where=f"--input {name}={path}",
        next_step=f"say which one: {name}={path}:{next(iter(arrays), 'key')}",
    )


def _tensor(array: Array, path: Path) -> Array:
    if array.dtype.name not in DTYPES:
        raise unreadable(path, f"its dtype {array.dtype} is none a tensor can have")
    return np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")


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
