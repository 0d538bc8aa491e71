"""Measure whether a changed model is faster: both in processes of their own that take turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from torchport.benchmark.children import Candidate, Worker
from torchport.benchmark.command_process import CommandError
from torchport.benchmark.feeds import given_feeds, inputs_of
from torchport.benchmark.ratios import Ratio, ratio_of
from torchport.engines.session import open_session
from torchport.errors import TorchportError
from torchport.inputs.create import accepted, made_up
from torchport.irtools.dims import roots_in
from torchport.irtools.metadata import read_bounds
from torchport.optimization.result import ONNXRUNTIME
from torchport.tensors import Array

_PROCESSES = 3  # of each model
_ROUNDS = 6  # in each of them
_SECONDS = 0.05  # of a turn
_SIZES = (1, 224, 64)  # rows of a batch, sides of images, other dimensions: what users have, not what is quick


def representative(model: ir.Model, inputs: Mapping[str, Any] | None, libraries: Sequence[Any]) -> dict[str, Array]:
    """Return inputs of sizes as users have them; the user's own if there are some."""
    infos = inputs_of(model)
    if inputs is not None:
        return given_feeds(inputs, infos, read_bounds(model.metadata_props))
    session, roots = open_session(model, libraries=libraries), roots_in(model)
    arrays = made_up(infos, _SIZES, roots)
    try:
        session(*arrays)
    except TorchportError:
        arrays = accepted(infos, lambda given: session(*given), roots)
    return {info.name: array for info, array in zip(infos, arrays, strict=True)}


def speed_ratio(before: Path, after: Path, feeds: Mapping[str, Array], libraries: Sequence[Any]) -> Ratio | None:
    """Return the time of the changed model as a part of the other's; None if one of them does not run."""
    candidates = [
        Candidate(name, "engine", str(path), ONNXRUNTIME, libraries=tuple(map(str, libraries)))
        for name, path in (("before", before), ("after", after))
    ]
    try:
        return ratio_of([_one_pair(candidates, feeds) for _ in range(_PROCESSES)])
    except CommandError:
        return None


def _one_pair(candidates: Sequence[Candidate], feeds: Mapping[str, Array]) -> list[tuple[float, float]]:
    """Return the times of the changed model and of the other one, in fresh processes, for each round."""
    with Worker(candidates[0]) as old, Worker(candidates[1]) as new:
        for worker in (old, new):
            worker.start()
        for worker in (old, new):
            worker.started()
            worker.open()
            worker.run("feeds", feeds)
            worker.warm_up("feeds", most=0.3)
        found = []
        for turn in range(_ROUNDS):
            order = (old, new) if turn % 2 else (new, old)
            times = {worker: _middle(worker.measure("feeds", _SECONDS, least=3)["times"]) for worker in order}
            found.append((times[new], times[old]))
        return found


def _middle(times: Sequence[float]) -> float:
    return sorted(times)[len(times) // 2]
