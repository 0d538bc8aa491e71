"""The samples of a search: some to calibrate with, others to compare the outputs on."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from torchport.benchmark.bench_call import BenchModel
from torchport.benchmark.feeds import inputs_of
from torchport.benchmark.rounds import Point
from torchport.errors import InputError
from torchport.inputs.binding import Binder
from torchport.inputs.samples import is_unnamed, read_samples, save_sample
from torchport.irtools.metadata import read_bounds
from torchport.optimization.tuned_folder import TunedFolder
from torchport.tensors import Array

_MOST_SAMPLES = 512  # that are read
_HELD_OUT = 4  # each fourth sample is compared on, and not calibrated with
_COMPARED = 16  # samples at most
_MADE_UP = 3  # inputs that are compared on where the user gives none
_BYTES = 256 << 20  # of held-out samples in memory


@dataclasses.dataclass(frozen=True)
class TuningSamples:
    """The user's samples: some to calibrate with, in a folder, the others to compare outputs on.

    Attributes:
        calibration: the folder; None without data.
        held_out: name and inputs of each sample to compare on.
        made_up: inputs to make up.
    """

    calibration: Path | None
    held_out: list[tuple[str, dict[str, Array]]]
    made_up: int = 0

    @classmethod
    def read(cls, data: Any, model: BenchModel, folder: TunedFolder) -> TuningSamples:
        """Read the data once, a sample at a time."""
        if data is None:
            return cls(None, [], _MADE_UP)
        infos = inputs_of(model.graph)
        binder = Binder(infos, read_bounds(model.graph.metadata_props))
        calibration = folder.search / "calibration"
        calibration.mkdir(exist_ok=True)
        held_out: list[tuple[str, dict[str, Array]]] = []
        kept = count = 0
        for count, sample in enumerate(itertools.islice(read_samples(data), _MOST_SAMPLES), 1):
            feeds = _checked(sample.name, sample.arrays, [i.name for i in infos], binder)
            size = sum(array.nbytes for array in feeds.values())
            if (count - 1) % _HELD_OUT == 0 and len(held_out) < _COMPARED and kept + size <= _BYTES:
                held_out.append((f"sample{len(held_out)}", feeds))
                kept += size
            else:
                save_sample(calibration / f"{count}.npz", feeds)
        if count == len(held_out):  # too few to hold some out
            for name, feeds in held_out:
                save_sample(calibration / f"{name}.npz", feeds)
        return cls(calibration, held_out)


def _checked(name: str, arrays: Mapping[str, Array], names: Sequence[str], binder: Binder) -> dict[str, Array]:
    """Return a sample's inputs by the model's names, once the model can take them.

    Raises:
        InputError: names, dtypes or shapes do not fit, or a number is NaN or infinite.
    """
    if len(arrays) == len(names) and all(is_unnamed(key) for key in arrays):
        arrays = dict(zip(names, arrays.values(), strict=True))
    try:
        feeds, _ = binder.bind(arrays)
    except InputError as error:
        raise InputError(f"sample '{name}': {error.what}", where=error.where, next_step=error.next_step) from error
    for key, array in feeds.items():
        if array.dtype.kind in "fc" and not np.isfinite(array).all():
            raise InputError(
                f"sample '{name}': input '{key}' holds NaN or infinity",
                next_step="leave the sample out, or correct what wrote it",
            )
    return {key: np.asarray(array) for key, array in feeds.items()}


def made_up(points: Sequence[Point], seed: int, *, count: int) -> list[tuple[str, dict[str, Array]]]:
    """Return inputs to compare outputs on: those of the points, and the same with other numbers."""
    found = [(f"compared{n}", dict(point.feeds)) for n, point in enumerate(points)]
    rng = np.random.default_rng(seed)
    for n in range(count - 1):
        feeds = {name: _shuffled(array, rng) for name, array in points[0].feeds.items()}
        found.append((f"shuffled{n}", feeds))
    return found if count else []


def _shuffled(array: Array, rng: np.random.Generator) -> Array:
    """Return floats in another order: their range stays what the model takes. Whole numbers may be ids: they stay."""
    if array.dtype.kind != "f":
        return array
    return np.asarray(rng.permutation(array.ravel()).reshape(array.shape))
