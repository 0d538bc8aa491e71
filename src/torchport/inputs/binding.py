"""Bind arrays to a model's inputs by name or position, and nest values by their dotted names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torchport.errors import InputError, did_you_mean
from torchport.inputs.samples import Sample, is_unnamed
from torchport.results import TensorInfo
from torchport.tensors import Array, as_pairs, is_torch, numpy_dtype, to_numpy


def fit_inputs(sample: Sample, infos: Sequence[TensorInfo]) -> dict[str, Array]:
    """The sample's arrays by the model's input names, each of the right dtype and shape.

    Arrays called by the inputs' names go to those; arrays without names of their own (``arr_0``, ``x0``) by position.

    Args:
        infos: the model's inputs, in order.

    Raises:
        InputError: an array is missing or one too many, or one does not fit its input; sample and input are named.

    Example:
        >>> fit_inputs(Sample("s", {"arr_0": image}), session.inputs)
        {'image': array(...)}
    """
    arrays = _by_name(sample, infos)
    try:
        return {info.name: checked_input(info, _suited(arrays[info.name], info)) for info in infos}
    except InputError as error:
        where = f"{sample.name}, {error.where}" if error.where else sample.name
        raise InputError(error.what, where=where, next_step=error.next_step) from error


def _by_name(sample: Sample, infos: Sequence[TensorInfo]) -> Mapping[str, Array]:
    names = [info.name for info in infos]
    if not set(names) & set(sample.arrays) and all(map(is_unnamed, sample.arrays)):
        return _by_position(sample, infos)
    extra = [n for n in sample.arrays if n not in names]
    missing = [n for n in names if n not in sample.arrays]
    if not extra and not missing:
        return sample.arrays
    known = (missing or names) if extra else ()
    otherwise = "give each of the model's inputs, and no more"
    raise InputError(
        f"the model has no input '{extra[0]}'" if extra else f"input '{missing[0]}' is missing",
        where=f"{sample.name}; the model takes {_told(infos)}",
        next_step=did_you_mean("".join(extra[:1]), known, otherwise, most=1, cutoff=0.3),
    )


def _by_position(sample: Sample, infos: Sequence[TensorInfo]) -> dict[str, Array]:
    if len(sample.arrays) != len(infos):
        raise InputError(
            f"{len(sample.arrays)} arrays for the {len(infos)} inputs of the model",
            where=f"{sample.name}; the model takes {_told(infos)}",
        )
    ordered = sorted(sample.arrays, key=lambda name: int(re.findall(r"\d+", name)[-1]))
    return {info.name: sample.arrays[name] for info, name in zip(infos, ordered, strict=True)}


def _told(infos: Sequence[TensorInfo]) -> str:
    return ", ".join(map(str, infos)) or "none"


def _suited(array: Array, info: TensorInfo) -> Array:
    """Complex numbers as the pairs ONNX takes, and bfloat16 that `np.savez` wrote as bytes of no dtype as bfloat16."""
    if array.dtype.kind == "c" and info.dtype.startswith("float"):
        return as_pairs(array)
    if array.dtype.name.startswith("void") and info.dtype != "string":
        wanted = numpy_dtype(info.dtype)
        return array.view(wanted) if wanted.kind == "V" and wanted.itemsize == array.dtype.itemsize else array
    return array


def checked_input(info: TensorInfo, value: Any) -> Array:
    """The value as an array of the right dtype and a shape that fits."""
    array = to_numpy(value) if is_torch(value) else np.asarray(value)
    if array.dtype.name != info.dtype and not is_torch(value) and not isinstance(value, np.ndarray):
        array = array.astype(numpy_dtype(info.dtype))  # Python numbers have no dtype of their own
    if array.dtype.name != info.dtype and not (info.dtype == "string" and array.dtype.kind in "OU"):
        raise InputError(
            f"input '{info.name}' is {array.dtype.name}, the model takes {info.dtype}",
            next_step=f"convert it with .astype('{info.dtype}') or .to(torch.{info.dtype})",
        )
    if info.shape is None:
        return array
    if array.ndim != len(info.shape):
        raise InputError(
            f"input '{info.name}' has rank {array.ndim}, the model takes {len(info.shape)}", where=str(info)
        )
    for axis, (want, got) in enumerate(zip(info.shape, array.shape, strict=True)):
        if isinstance(want, int) and want != got:
            raise InputError(
                f"input '{info.name}' has size {got} at axis {axis}, the model is fixed to {want}",
                where=str(info),
                next_step="export it with that axis dynamic, or give it that size",
            )
    return array
