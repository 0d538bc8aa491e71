"""Calibration data: samples checked one at a time, and kept on disk; a part of them is held out for the guard.

However much data there is, one sample is in memory. The samples that were read first are taken, `MOST` of them at
most, so that an endless iterator ends.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from torchport.benchmark.child import read_arrays, save_arrays
from torchport.errors import InputError
from torchport.inputs.binding import Binder
from torchport.inputs.create import create_named
from torchport.inputs.samples import Sample, is_unnamed, read_samples
from torchport.inputs.spec import InputSpec
from torchport.results import Bound, Finding, TensorInfo
from torchport.tensors import Array

MOST = 256
_MADE_UP = 16  # samples
_HELD_OUT = 4  # every fourth sample is
_EXTRA = ".extra"  # arrays of a sample that are no inputs: labels, say


@dataclasses.dataclass(frozen=True)
class CalibrationData:
    """Samples on disk.

    Attributes:
        folder: where they are.
        calibration: the names of those that ranges are taken from.
        held_out: the names of those that the guard compares; the same ones if there is one sample only.
        made_up: nobody gave them.
        findings: what the user should know of them.
    """

    folder: Path
    calibration: tuple[str, ...]
    held_out: tuple[str, ...]
    made_up: bool = False
    findings: tuple[Finding, ...] = ()

    def inputs(self, name: str) -> dict[str, Array]:
        """Return the inputs of a sample."""
        return read_arrays(self.folder, name)

    def whole(self, name: str) -> dict[str, Array]:
        """Return a sample with what else was in its file, for a metric."""
        extra = read_arrays(self.folder, name + _EXTRA) if (self.folder / f"{name}{_EXTRA}.json").exists() else {}
        return {**self.inputs(name), **extra}


def given_data(
    source: object, infos: Sequence[TensorInfo], bounds: Mapping[str, Bound], folder: Path, *, extras: bool
) -> CalibrationData:
    """Read samples, check that each fits the model, and keep them in a folder.

    Args:
        source: as for `read_samples`.
        infos: the model's inputs.
        bounds: the sizes it is good for.
        folder: an empty one.
        extras: arrays that are no inputs may be there, for a metric.

    Raises:
        InputError: there are no samples, or one has wrong names, dtypes or shapes, nothing in it, or NaN.
    """
    binder = Binder(infos, bounds)
    names: list[str] = []
    samples = read_samples(source)
    for sample in itertools.islice(samples, MOST):
        inputs, extra = _split(sample, infos, extras=extras)
        name = f"s{len(names)}"
        save_arrays(folder, name, _checked(sample, inputs, binder))
        if extra:
            save_arrays(folder, name + _EXTRA, extra)
        names.append(name)
    more = [Finding(f"the first {MOST} samples are taken")] if next(samples, None) is not None else []
    return _divided(folder, names, more)


def made_up_data(example: Mapping[str, Array], folder: Path, seed: int) -> CalibrationData:
    """Make samples of random numbers, in the shapes of inputs that the model takes."""
    specs = [InputSpec.tensor(name, array.dtype.name, array.shape) for name, array in example.items()]
    names = [f"s{n}" for n in range(_MADE_UP)]
    for n, name in enumerate(names):
        _, arrays = create_named(specs, seed=seed + n)
        save_arrays(folder, name, arrays)
    warning = Finding(
        "the calibration data is made up: neither the ranges nor the errors are those of your inputs; give --data"
    )
    return dataclasses.replace(_divided(folder, names, []), made_up=True, findings=(warning,))


def _divided(folder: Path, names: Sequence[str], findings: Sequence[Finding]) -> CalibrationData:
    if len(names) == 1:
        told = Finding("there is one sample: it is calibrated on and held against the float model; give more")
        return CalibrationData(folder, tuple(names), tuple(names), findings=(*findings, told))
    held_out = [n for n in range(len(names)) if n % _HELD_OUT == _HELD_OUT - 1] or [len(names) - 1]
    kept = [name for n, name in enumerate(names) if n not in held_out]
    return CalibrationData(folder, tuple(kept), tuple(names[n] for n in held_out), findings=tuple(findings))


def _split(sample: Sample, infos: Sequence[TensorInfo], *, extras: bool) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return a sample's inputs, and its arrays that are no inputs."""
    names = [info.name for info in infos]
    arrays = dict(sample.arrays)
    if all(map(is_unnamed, arrays)) and not set(arrays) & set(names) and len(arrays) == len(names):
        arrays = dict(zip(names, arrays.values(), strict=True))
    extra = {name: array for name, array in arrays.items() if name not in names} if extras else {}
    inputs = {name: array for name, array in arrays.items() if name not in extra}
    return inputs, {**extra, **(sample.outputs if extras else {})}


def _checked(sample: Sample, inputs: Mapping[str, Array], binder: Binder) -> dict[str, Array]:
    try:
        arrays, _ = binder.bind(inputs)
    except InputError as error:
        where = f"sample '{sample.name}'" + (f"; the model takes {error.where}" if error.where else "")
        raise InputError(error.what, where=where, next_step=error.next_step) from error
    for name, array in arrays.items():
        if not array.size:
            raise _unusable(sample, name, "is empty", "leave the sample out")
        if array.dtype.kind not in "biuSUO" and not np.isfinite(array.astype(np.float64, copy=False)).all():
            raise _unusable(
                sample, name, "has NaN or infinity, which no range can be taken from", "correct or remove it"
            )
    return arrays


def _unusable(sample: Sample, name: str, fault: str, next_step: str) -> InputError:
    return InputError(f"input '{name}' {fault}", where=f"sample '{sample.name}'", next_step=next_step)


def stored(data: CalibrationData, names: Sequence[str]) -> Iterator[dict[str, Array]]:
    """Give the inputs of samples, one at a time."""
    return (data.inputs(name) for name in names)
