"""Bind values to a model's inputs by name, and nest values by their dotted names."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from torchport.errors import InputError, did_you_mean
from torchport.irtools.dims import is_placeholder
from torchport.results import Bound, TensorInfo
from torchport.tensors import FLOATS, INTEGERS, Array, is_torch, numpy_dtype, to_numpy


class Binder:
    """Binds values to a model's inputs, call after call.

    A call must cost next to nothing: what does not depend on the values is computed once, and a value that fits is only
    looked at. Whatever does not fit is checked again at leisure, for the message.
    """

    def __init__(self, infos: Sequence[TensorInfo], bounds: Mapping[str, Bound] = MappingProxyType({})) -> None:
        self._infos, self._bounds = tuple(infos), bounds
        self._plans = tuple(_plan(info) for info in infos)
        self._dims = _dims_to_check(self._infos, bounds)

    def bind(self, feeds: Mapping[str, Any]) -> tuple[dict[str, Array], bool]:
        """Return one array for each input, of its dtype and of a shape that fits; and if a torch tensor is among them.

        Raises:
            InputError: an input is missing or one too many, a value does not fit its input, or a dimension has two
                sizes or one that the model is not good for.
        """
        if len(feeds) != len(self._plans) or any(plan[0] not in feeds for plan in self._plans):
            check_names(feeds, [info.name for info in self._infos], where=", ".join(map(str, self._infos)))
        arrays: dict[str, Array] = {}
        any_torch = False
        for index, (name, dtype, rank, fixed) in enumerate(self._plans):
            array = given = feeds[name]
            if type(given) is not np.ndarray:
                of_torch = is_torch(given)
                any_torch = any_torch or of_torch
                array = to_numpy(given) if of_torch else np.asarray(given)
            if array.dtype != dtype or array.ndim != rank or (fixed and _differs(array.shape, fixed)):
                array = _checked(self._infos[index], given)
            arrays[name] = array
        for dim, bound, places in self._dims:
            sizes = [arrays[name].shape[axis] for name, axis in places]
            if any(size != sizes[0] for size in sizes) or (bound is not None and not bound.allows(sizes[0])):
                raise _unfit_dim(dim, bound, places, sizes)
        return arrays, any_torch


Fixed = tuple[tuple[int, int], ...]
Places = tuple[tuple[str, int], ...]


def _plan(info: TensorInfo) -> tuple[str, np.dtype[Any] | None, int, Fixed]:
    """Return an input's name, dtype, rank and the sizes of its fixed axes; no dtype where only `_checked` can tell."""
    if info.shape is None or info.dtype not in _PLAIN:
        return info.name, None, -1, ()
    fixed = tuple((axis, size) for axis, size in enumerate(info.shape) if isinstance(size, int))
    return info.name, numpy_dtype(info.dtype), len(info.shape), fixed


_PLAIN = (*FLOATS, *INTEGERS, "bool")


def _differs(shape: Sequence[int], fixed: Fixed) -> bool:
    return any(shape[axis] != size for axis, size in fixed)


def _dims_to_check(
    infos: Sequence[TensorInfo], bounds: Mapping[str, Bound]
) -> tuple[tuple[str, Bound | None, Places], ...]:
    """Return the dimensions that stand in several places or have bounds, with the places."""
    places: dict[str, list[tuple[str, int]]] = {}
    for info in infos:
        for axis, dim in enumerate(info.shape or ()):
            if isinstance(dim, str) and not is_placeholder(dim):
                places.setdefault(dim, []).append((info.name, axis))
    return tuple((d, bounds.get(d), tuple(p)) for d, p in places.items() if len(p) > 1 or d in bounds)


def _unfit_dim(dim: str, bound: Bound | None, places: Places, sizes: Sequence[int]) -> InputError:
    other = next((n for n, size in enumerate(sizes) if size != sizes[0]), None)
    first = f"{places[0][0]} axis {places[0][1]}"
    if other is not None:
        return InputError(
            f"dimension '{dim}' has two sizes: {sizes[0]} and {sizes[other]}",
            where=f"{first} and {places[other][0]} axis {places[other][1]}",
            next_step="give both the same size",
        )
    return InputError(
        f"dimension '{dim}' is {sizes[0]}; the model was exported for {dim} {bound}",
        where=first,
        next_step="feed a size that it is good for, or export it again for this one",
    )


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
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))  # engines read the bytes as this machine writes them
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


def buffer(name: str, given: Any, wanted: Sequence[str], outputs: Sequence[TensorInfo]) -> Array:
    """Return the memory of an array or tensor that an output is to be written into.

    Raises:
        InputError: there is no such output, or it cannot be written there without another array between.
    """
    info = next((o for o in outputs if o.name == name and name in wanted), None)
    if info is None:
        hint = did_you_mean(name, wanted, f"the outputs are {', '.join(wanted)}", most=1)
        raise InputError(f"there is no output '{name}' to write into a buffer", next_step=hint)
    array = given.detach().numpy() if is_torch(given) and _is_plain_torch(given) else given
    if not isinstance(array, np.ndarray):
        kind = type(given).__name__
        raise InputError(f"the buffer for output '{name}' is a {kind}", next_step="give a numpy array or a CPU tensor")
    if array.dtype.name != info.dtype or not array.dtype.isnative:
        raise InputError(
            f"the buffer for output '{name}' is {array.dtype.name}, the output {info.dtype}",
            next_step=f"make it with dtype='{info.dtype}'",
        )
    shape = info.shape
    if shape is not None and (len(shape) != array.ndim or not all(map(_fits, shape, array.shape))):
        raise unfit_buffer(name, array.shape, shape)
    if not array.flags.c_contiguous or not array.flags.writeable:
        fault = "not writeable" if array.flags.c_contiguous else "not contiguous"
        raise InputError(f"the buffer for output '{name}' is {fault}", next_step="make it with np.empty(shape, dtype)")
    return array


def _fits(wanted: int | str | None, size: int) -> bool:
    return not isinstance(wanted, int) or wanted == size


def unfit_buffer(name: str, given: Sequence[int], wanted: Sequence[int | str | None]) -> InputError:
    """Return the error for a buffer of another shape than its output."""
    shown = [f"[{','.join('?' if n is None else str(n) for n in shape)}]" for shape in (given, wanted)]
    return InputError(
        f"the buffer for output '{name}' has the shape {shown[0]}, the output {shown[1]}",
        next_step="give a buffer of the output's shape, or leave it out",
    )


def _is_plain_torch(tensor: Any) -> bool:
    return tensor.device.type == "cpu" and str(tensor.layout) == "torch.strided" and "bfloat16" not in str(tensor.dtype)


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
