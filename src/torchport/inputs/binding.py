"""Bind values to a model's inputs by name, and nest values by their dotted names."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from torchport.errors import InputError, did_you_mean
from torchport.results import TensorInfo
from torchport.tensors import Array, is_torch, numpy_dtype, to_numpy


def bind(feeds: Mapping[str, Any], infos: Sequence[TensorInfo]) -> dict[str, Array]:
    """Return one array for each input of a model, of its dtype and of a shape that fits.

    Raises:
        InputError: an input is missing or one too many, or a value does not fit its input.
    """
    check_names(feeds, [info.name for info in infos], where=", ".join(map(str, infos)))
    return {info.name: _checked(info, feeds[info.name]) for info in infos}


def check_names(given: Collection[str], names: Sequence[str], *, where: str) -> None:
    """Check that each input is given, and nothing else.

    Raises:
        InputError: one is missing or one too many; `where` lists the inputs there are.
    """
    missing = [name for name in names if name not in given]
    unknown = [name for name in given if name not in names]
    if unknown:
        hint = did_you_mean(unknown[0], missing or names, "give each of these inputs", most=1, cutoff=0.3)
        raise InputError(f"there is no input '{unknown[0]}'", where=where, next_step=hint)
    if missing:
        raise InputError(f"input '{missing[0]}' is missing", where=where, next_step="give each of these inputs")


def _checked(info: TensorInfo, value: Any) -> Array:
    """Return the value as an array, once its dtype and shape are those of the input."""
    array = to_numpy(value) if is_torch(value) else np.asarray(value)
    if array.dtype.name != info.dtype and not is_torch(value) and not isinstance(value, np.ndarray):
        array = array.astype(numpy_dtype(info.dtype))  # Python numbers have no dtype of their own
    if array.dtype.name != info.dtype and not (info.dtype == "string" and array.dtype.kind in "OU"):
        raise InputError(
            f"input '{info.name}' is {array.dtype.name}, the model takes {info.dtype}",
            next_step=f"convert it with .astype('{info.dtype}') or .to(torch.{info.dtype})",
        )
    if info.shape is not None:
        _check_shape(info, info.shape, array.shape)
    return array


def _check_shape(info: TensorInfo, wanted: Sequence[int | str | None], shape: Sequence[int]) -> None:
    if len(shape) != len(wanted):
        raise InputError(
            f"input '{info.name}' has rank {len(shape)}, the model takes {len(wanted)}",
            where=str(info),
            next_step=f"give it {len(wanted)} axes, as shown above",
        )
    for axis, (want, got) in enumerate(zip(wanted, shape, strict=True)):
        if isinstance(want, int) and want != got:
            raise InputError(
                f"input '{info.name}' has size {got} at axis {axis}, the model is fixed to {want}",
                where=str(info),
                next_step="export it with that axis dynamic, or give it that size",
            )


class _Branch(dict[str, Any]):
    """A dict made from dotted names, not one that came as a value."""


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments from dotted names: ``states.0`` is in a list, ``batch.mask`` in a dict.

    Raises:
        InputError: a name is also the beginning of another, or the items of a list are not numbered from 0.
    """
    tree = _Branch()
    for name, value in values.items():
        *above, last = name.split(".")
        branch = tree
        for depth, part in enumerate(above, 1):
            branch = branch.setdefault(part, _Branch())
            if not isinstance(branch, _Branch):
                raise _overlap(".".join(above[:depth]), name)
        if last in branch:
            raise _overlap(name, next(other for other in values if other.startswith(f"{name}.")))
        branch[last] = value
    return {name: _with_lists(value, name) for name, value in tree.items()}


def _overlap(whole: str, part: str) -> InputError:
    return InputError(
        f"'{whole}' is given as a whole and in part, as '{part}'", next_step="rename one, or leave it out"
    )


def _with_lists(value: Any, name: str) -> Any:
    """Return a branch whose keys are all numbers as a list."""
    if not isinstance(value, _Branch):
        return value
    items = {key: _with_lists(item, f"{name}.{key}") for key, item in value.items()}
    numbers = [key for key in items if key.isdigit()]
    if not numbers:
        return dict(items)
    if sorted(numbers, key=int) != [str(i) for i in range(len(items))]:
        raise InputError(
            f"the items of '{name}' are not numbered 0, 1, 2, …: {', '.join(items)}",
            next_step="number the items from 0 without gaps",
        )
    return [items[str(i)] for i in range(len(items))]


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values in dicts, lists and tuples by their dotted names, as an ONNX model calls its inputs."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        inner = {str(i): item for i, item in enumerate(value)} if isinstance(value, (list, tuple)) else value
        if isinstance(inner, Mapping):
            found |= {f"{name}.{key}": item for key, item in flat(inner).items()}
        else:
            found[name] = value
    return found
