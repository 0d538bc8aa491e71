"""Samples: the inputs of one call, from files or from memory, read one at a time.

A sample is an ``.npz`` whose names are the model's inputs, or an ``.npy`` for a model of one input. What `tp.record`
saves is such an ``.npz`` that also holds what the model gave, which arguments were no tensors, and which containers the
tensors were in; those are kept apart from the inputs by names no input has.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from torchport.errors import InputError, SaveError, first_line
from torchport.files.filesystem import write_atomically
from torchport.inputs.arrays import read_arrays, unreadable
from torchport.tensors import Array, is_torch, to_numpy

OUTPUT = "__output__."  # before the names of a recorded call's outputs
ARGUMENTS = "__arguments__"  # JSON: a recorded call's arguments that are no tensors
GIVEN = "__given__"  # JSON: how each argument of a recorded call was given, containers and all
DTYPES = "__dtypes__"  # JSON: the dtypes numpy's files have no word for, such as bfloat16
_SUFFIXES = (".npz", ".npy")
_NO_NAME = re.compile(r"(?:arr|arg|x|input|inputs)[_.]?(\d+)")  # what tools call an array that was given no name


@dataclasses.dataclass(frozen=True)
class Sample:
    """The inputs of one call.

    Attributes:
        name: the file's name, or which one of an iterable it is.
        arrays: the inputs by name; ``arr_0``, ``arr_1`` where they have none.
        outputs: what the model gave, if the sample was recorded.
        arguments: arguments that are no tensors, if it was recorded.
        given: how each argument was given, if it was recorded; `comparison.recorded_calls.rebuilt` makes it again.
        call: how a PyTorch model is called with it, positional and by name, where containers hold some of its inputs.
    """

    name: str
    arrays: Mapping[str, Array]
    outputs: Mapping[str, Array] = dataclasses.field(default_factory=dict)
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    given: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    call: tuple[tuple[Any, ...], dict[str, Any]] | None = None


def read_samples(source: object) -> Iterator[Sample]:
    """Samples one at a time, each read only when it is asked for.

    Args:
        source: an ``.npz`` or ``.npy``; a folder of them, ``s2`` before ``s10``; a dict of arrays, an array or a tuple
            of arrays for one sample; a list, generator or data loader of such. Arrays may be torch tensors.

    Raises:
        InputError: there is nothing to read, or a sample cannot be read; it is named.

    Example:
        >>> for sample in read_samples("samples/"):
        ...     session.run(sample.arrays)
    """
    if isinstance(source, (str, os.PathLike)):
        return map(_read, _files(Path(source)))
    if _is_array(source) or isinstance(source, (Mapping, tuple)):
        return iter([_from_memory("sample 0", source)])
    if not isinstance(source, Iterable):
        raise InputError(
            f"{type(source).__name__} holds no samples",
            next_step="give a folder of .npz files, a dict of arrays, or a list or generator of such",
        )
    return _from_iterable(source)


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        found = sorted((p for p in path.iterdir() if p.suffix in _SUFFIXES and p.is_file()), key=_natural)
        found = [p for p in found if not p.name.startswith(".")]
        if not found:
            what = "holds no .npz or .npy" if any(path.iterdir()) else "is empty"
            raise InputError(f"the folder '{path}' {what}", next_step="put one .npz for each sample there")
        return found
    if not path.exists():
        raise InputError(
            f"there is no file or folder '{path}'",
            next_step="check the path; `torchport record` and numpy.savez write samples",
        )
    if path.suffix not in _SUFFIXES:
        raise InputError(f"'{path}' is neither .npz nor .npy", next_step="save it with np.savez(path, name=array)")
    return [path]


def _natural(path: Path) -> list[tuple[int, str]]:
    """``s2`` before ``s10``: digits are ordered as numbers."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", path.name) if part]


def _read(path: Path) -> Sample:
    arrays = read_arrays(path)
    try:
        return _sorted_out(path.name, arrays)
    except (ValueError, KeyError, TypeError) as error:  # the notes of a recorded call, not as they were written
        raise unreadable(path, first_line(error)) from error


def _sorted_out(name: str, arrays: dict[str, Array]) -> Sample:
    """Inputs, outputs and notes apart."""
    unsaid = json.loads(str(arrays.pop(DTYPES))) if DTYPES in arrays else {}
    arguments = json.loads(str(arrays.pop(ARGUMENTS))) if ARGUMENTS in arrays else {}
    given = json.loads(str(arrays.pop(GIVEN))) if GIVEN in arrays else {}
    arrays = {key: array.view(_lent(unsaid[key])) if key in unsaid else array for key, array in arrays.items()}
    outputs = {key.removeprefix(OUTPUT): array for key, array in arrays.items() if key.startswith(OUTPUT)}
    return Sample(name, {key: a for key, a in arrays.items() if not key.startswith(OUTPUT)}, outputs, arguments, given)


def _lent(name: str) -> np.dtype[Any]:
    import ml_dtypes

    if not hasattr(ml_dtypes, name):
        raise ValueError(f"there is no dtype '{name}'")
    return np.dtype(getattr(ml_dtypes, name))


def _from_iterable(source: Iterable[object]) -> Iterator[Sample]:
    count = 0
    for item in source:
        yield item if isinstance(item, Sample) else _from_memory(f"sample {count}", item)
        count += 1
    if not count:
        raise InputError(
            "there are no samples: the list or generator given is empty",
            next_step="give at least one; a generator that was read before is empty",
        )


def _from_memory(name: str, item: object) -> Sample:
    if isinstance(item, Mapping):
        named = {str(key): value for key, value in item.items()}
    elif _is_array(item) or np.isscalar(item):
        named = {"arr_0": item}
    elif isinstance(item, (tuple, list)):
        named = {f"arr_{i}": value for i, value in enumerate(item)}
    else:
        raise InputError(
            f"{name} is {type(item).__name__}", next_step="give a dict of arrays, a tuple of arrays or one array"
        )
    return Sample(name, {key: _array(name, key, value) for key, value in named.items()})


def _is_array(value: object) -> bool:
    return isinstance(value, np.ndarray) or (is_torch(value) and hasattr(value, "detach"))


def _array(sample: str, key: str, value: Any) -> Array:
    array = to_numpy(value) if is_torch(value) else np.asarray(value)
    if array.dtype.kind == "O" and not all(isinstance(text, str) for text in array.flat):
        raise InputError(f"'{key}' of {sample} holds Python objects, no numbers", next_step="give arrays of numbers")
    return array


def is_unnamed(name: str) -> bool:
    """Whether it is what tools call an array that was given no name: ``arr_0``, ``x0``."""
    return _NO_NAME.fullmatch(name) is not None


def save_arrays(path: str | os.PathLike[str], arrays: Mapping[str, Array]) -> None:
    """Write an .npz. `numpy.savez` takes names as keywords, of which it has some of its own: `file`, for one."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


def save_sample(path: str | os.PathLike[str], arrays: Mapping[str, Array]) -> None:
    """Write an ``.npz`` in one go: a reader sees all of it or nothing. Any name will do, and bfloat16 comes back.

    Raises:
        SaveError: it cannot be written.

    Example:
        >>> save_sample("worst.npz", {"x": x})
    """
    saved = _saved(arrays)
    write_atomically(path, lambda part: save_arrays(part, saved))


def save_call(path: str | os.PathLike[str], sample: Sample) -> None:
    """Write a sample with all that was recorded beside its arrays, so that it comes back as it was.

    Raises:
        SaveError: it cannot be written.
    """
    notes = {ARGUMENTS: sample.arguments, GIVEN: sample.given}
    outputs = {OUTPUT + name: array for name, array in sample.outputs.items()}
    told = {key: np.array(json.dumps(note)) for key, note in notes.items() if note}
    save_sample(path, {**sample.arrays, **outputs, **told})


def _saved(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The arrays as numpy's files can have them, and beside them the dtypes that these have no word for."""
    plain, unsaid = {}, {}
    for name, array in ((n, np.asarray(a)) for n, a in arrays.items()):
        plain[name] = _writable(name, array)
        if plain[name].dtype != array.dtype and array.dtype.kind == "V":
            unsaid[name] = array.dtype.name
    if unsaid:
        plain[DTYPES] = np.array(json.dumps(unsaid))
    return plain


def _writable(name: str, array: Array) -> Array:
    if array.dtype.kind == "V":  # bfloat16, float8, int4: lent by ml_dtypes, unknown to numpy's files
        return np.asarray(array, order="C").view(f"u{array.dtype.itemsize}")
    if array.dtype.kind != "O":
        return array
    if not all(isinstance(text, str) for text in array.flat):
        raise SaveError(
            f"'{name}' holds Python objects, which are not saved",
            next_step="save arrays of numbers, booleans or strings",
        )
    return array.astype(str)
