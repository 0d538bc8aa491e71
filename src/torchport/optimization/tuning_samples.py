"""The samples of a search: some to calibrate with, others to compare the outputs on."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from torchport.benchmark.bench_call import BenchModel
from torchport.benchmark.feeds import inputs_of
from torchport.benchmark.rounds import Point
from torchport.inputs.samples import save_sample
from torchport.irtools.metadata import read_bounds
from torchport.optimization.calibration import given_data
from torchport.optimization.tuned_folder import TunedFolder
from torchport.results import Finding
from torchport.tensors import Array

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
        findings: what the user should know of them.
    """

    calibration: Path | None
    held_out: list[tuple[str, dict[str, Array]]]
    made_up: int = 0
    findings: tuple[Finding, ...] = ()

    @classmethod
    def read(cls, data: Any, model: BenchModel, folder: TunedFolder) -> TuningSamples:
        """Read the data once, a sample at a time."""
        if data is None:
            return cls(None, [], _MADE_UP)
        infos, bounds = inputs_of(model.graph), read_bounds(model.graph.metadata_props)
        calibration = folder.search / "calibration"
        calibration.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="torchport-") as place:
            stored = given_data(data, infos, bounds, Path(place), extras=False)
            for name in stored.calibration:
                save_sample(calibration / f"{name}.npz", stored.inputs(name))
            held_out: list[tuple[str, dict[str, Array]]] = []
            kept = 0
            for name in stored.held_out[:_COMPARED]:
                feeds = stored.inputs(name)
                kept += sum(array.nbytes for array in feeds.values())
                if not held_out or kept <= _BYTES:
                    held_out.append((name, feeds))
        return cls(calibration, held_out, findings=stored.findings)


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
