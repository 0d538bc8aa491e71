"""Create input arrays from `--input` specs: random numbers, single values and files.

Files may come from anywhere: numpy's are read without its pickles, and no more memory is taken than the machine has.
PyTorch's files are read by a function that the caller passes in, so that torch is not imported here.
"""

from __future__ import annotations

import dataclasses
import math
import shlex
import stat
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from torchport.errors import InputError, TorchportError
from torchport.inputs.arrays import memory, read_arrays, unreadable
from torchport.inputs.binding import nested
from torchport.inputs.spec import InputSpec, Random, Scalar, Stored, is_name
from torchport.irtools.dims import Dims, input_dims
from torchport.results import TensorInfo
from torchport.tensors import COMPLEX, DTYPES, FLOATS, INTEGERS, Array, numpy_dtype

Args = tuple[tuple[Any, ...], dict[str, Any]]
Values = tuple[list[Any], dict[str, Any]]  # that one spec adds to the positional and to the named arguments
PtReader = Callable[[Path, str | None], Values]  # of a file of torch.save, given for an input of this name or for all


def create_inputs(specs: Sequence[InputSpec], *, seed: int = 0, read_pt: PtReader | None = None) -> Args:
    """Return the positional and the keyword arguments that the specs describe, with arrays for tensors."""
    args, named = create_named(specs, seed=seed, read_pt=read_pt)
    return args, nested(named)


def create_named(
    specs: Sequence[InputSpec], *, seed: int = 0, read_pt: PtReader | None = None, names: Collection[str] = ()
) -> Args:
    """Return positional and named values. Dots in a name mean nothing here: ``input.1`` is an input of many models.

    The numbers depend on the seed and on the position of the spec in the list, and on nothing else.

    Raises:
        InputError: a name comes twice, a file cannot be read, or a tensor does not fit into memory.
    """
    if seed < 0:
        raise InputError(f"the seed {seed} is negative", next_step="give a seed of 0 or more")
    args: list[Any] = []
    named: dict[str, Any] = {}
    for place, spec in enumerate(specs):
        more, by_name = _values(spec, np.random.default_rng([seed, place]), read_pt, names)
        args += more
        if twice := [name for name in by_name if name in named]:
            raise InputError(
                f"input '{twice[0]}' is given twice", where=f"--input {twice[0]}=…", next_step="give each input once"
            )
        named |= by_name
    return tuple(args), named


def _values(spec: InputSpec, rng: np.random.Generator, read_pt: PtReader | None, known: Collection[str]) -> Values:
    if isinstance(spec.value, Stored):
        return _from_file(spec.name, spec.value, read_pt, known)
    return _one(spec.name, spec.value.value if isinstance(spec.value, Scalar) else _random(spec.value, rng))


def _one(name: str | None, value: Any) -> Values:
    return ([value], {}) if name is None else ([], {name: value})


def _random(spec: Random, rng: np.random.Generator) -> Any:
    size = math.prod(spec.shape) * numpy_dtype(spec.dtype).itemsize
    too_large = InputError(
        f"a tensor of {size:,} bytes does not fit into memory",
        where=f"--input {spec}",
        next_step="give a smaller shape",
    )
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


def _from_file(name: str | None, stored: Stored, read_pt: PtReader | None, known: Collection[str]) -> Values:
    path = _regular(stored)
    if path.suffix.lower() in (".npy", ".npz"):
        arrays = {n: _tensor(a, path) for n, a in read_arrays(path, stored.key).items() if not n.startswith(_NOTE)}
        if name is None and stored.key is None and path.suffix.lower() == ".npz":
            return [], _named(arrays, path, known)
        value = _only(arrays, name, path)
    elif read_pt is None:
        raise unreadable(path, "only .npy and .npz are read here")
    else:
        args, named = read_pt(path, name)
        return args, named if name is not None else _named(named, path, known)
    return _one(name, value)


def _named(values: dict[str, Any], path: Path, known: Collection[str]) -> dict[str, Any]:
    if bad := [name for name in values if not is_name(name) and name not in known]:
        raise unreadable(path, f"'{bad[0][:80]}' is no name of an argument")
    return values


def _regular(stored: Stored) -> Path:
    path = Path(stored.path)
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        raise InputError(
            f"there is no file {stored.path}",
            where=f"--input {stored}",
            next_step="check the path; or have numbers made: float32[1,3,224,224]",
        ) from error
    if not stat.S_ISREG(mode):
        raise InputError(
            f"{stored.path} is not a regular file", where=f"--input {stored}", next_step="give a .npy, .npz or .pt file"
        )
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
    if array.dtype.kind == "U":
        return array
    if array.dtype.name not in DTYPES:
        raise unreadable(path, f"its dtype {array.dtype} is none a tensor can have")
    return np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")


# --- inputs made up from the shapes of an ONNX model ------------------------------------------------------------------

Sizes = tuple[int, int, int]  # of rows of a batch, of sides of images, of other dimensions that may vary

_EXAMPLE_SIZES = (2, 64, 2)  # a network that halves an image five times has something left of it
_FURTHER_SIZES = (
    *((2, 2, 2), (1, 64, 1), (1, 1, 1), (1, 8, 8), (2, 32, 32), (1, 32, 32)),
    *((1, size, size) for size in (64, 128, 160, 224, 256, 320, 512, 640, 1024, 4096, 16000, 32000)),
)
_MOST_BYTES = 64 * 2**20  # of an example that is only tried
_MOST_SECONDS = 30.0  # for trying examples


def made_up(infos: Sequence[TensorInfo], sizes: Sizes = _EXAMPLE_SIZES, roots: Sequence[str] = ()) -> list[Array]:
    """Return random inputs of these dtypes and shapes.

    Args:
        infos: the inputs of a model.
        sizes: of the dimensions that may vary. One that is an expression of others has the size that follows.
        roots: names that only expressions in the shapes have.
    """
    return _created(made_up_specs(infos, sizes, roots))


def _created(specs: Sequence[InputSpec]) -> list[Array]:
    return list(create_inputs([dataclasses.replace(spec, name=None) for spec in specs])[0])


def made_up_specs(
    infos: Sequence[TensorInfo], sizes: Sizes = _EXAMPLE_SIZES, roots: Sequence[str] = (), *, rows_up_to: int = 0
) -> list[InputSpec]:
    """Return what `made_up` makes, as it would be written on the command line.

    With `rows_up_to` 1, rows of a batch are also at the second axis, as in the state of a recurrent network.
    """
    for info in infos:
        if info.dtype == "string" or "(" in info.dtype:
            raise InputError(
                f"input '{info.name}' is {info.dtype}, of which no example can be made",
                next_step="give the input: --input name=file.npy",
            )
        if info.shape is None:
            raise InputError(
                f"input '{info.name}' has no shape to make an example from",
                next_step=f"give one: -i '{info.name}={info.dtype}[1,3,224,224]', in the shape that it takes",
            )
    dims = Dims.of_inputs(infos, roots)
    names = input_dims((info.name, info.shape or ()) for info in infos)
    rows = {
        names[i.name, axis]
        for i in infos
        for axis in range(min(rows_up_to + 1, len(i.shape or ()) - 1))
        if (i.name, axis) in names and all(isinstance(d, int) for d in (i.shape or ())[:axis])
    }
    sides = {
        names[i.name, n] for i in infos for n in range(2, len(i.shape or ())) if (i.name, n) in names and _is_image(i)
    }
    free = {
        name: sizes[0 if name in rows else 1 if name in sides else 2]
        for text in names.values()
        for name in dims.symbols(text)
    }

    def size(info: TensorInfo, axis: int, dim: int | str | None) -> int:
        found = dim if isinstance(dim, int) else dims.evaluated(names[info.name, axis], free)
        return max(found, 0) if isinstance(found, int) else sizes[2]

    return [
        InputSpec.tensor(info.name, info.dtype, [size(info, n, d) for n, d in enumerate(info.shape or ())])
        for info in infos
    ]


def _is_image(info: TensorInfo) -> bool:
    return len(info.shape or ()) >= 4 and info.dtype in FLOATS


def accepted(
    infos: Sequence[TensorInfo], run: Callable[[list[Array]], object], roots: Sequence[str] = ()
) -> list[Array]:
    """Return made-up inputs that a model runs on: of small sizes first, then of those that networks are made for.

    Raises:
        InputError: it refuses all of them; the message has its reason, and how to give an example.
    """
    refusals: list[tuple[list[InputSpec], TorchportError]] = []
    start = time.monotonic()
    for sizes, rows in ((sizes, rows) for rows in (0, 1) for sizes in (_EXAMPLE_SIZES, *_FURTHER_SIZES)):
        specs = made_up_specs(infos, sizes, roots, rows_up_to=rows)
        large = sum(_bytes(spec) for spec in specs) > _MOST_BYTES or time.monotonic() - start > _MOST_SECONDS
        if refusals and (large or specs in [tried for tried, _ in refusals]):
            continue
        arrays = _created(specs)
        try:
            run(arrays)
        except TorchportError as error:
            refusals.append((specs, error))
        else:
            return arrays
    raise _all_refused(refusals)


def _bytes(spec: InputSpec) -> int:
    assert isinstance(spec.value, Random)
    return math.prod(spec.value.shape) * numpy_dtype(spec.value.dtype).itemsize


def _all_refused(refusals: Sequence[tuple[list[InputSpec], TorchportError]]) -> InputError:
    specs, last = refusals[0]
    shown = " ".join(f"-i {shlex.quote(str(spec))}" for spec in specs)
    tried = "the example" if len(refusals) == 1 else f"the {len(refusals)} examples"
    return InputError(
        f"the model refuses {tried} made up from its shapes: {last.what}",
        where=last.where,
        next_step=f"give inputs that it takes, in place of the sizes and values here: {shown}",
    )
