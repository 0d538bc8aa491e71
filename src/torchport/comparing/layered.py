"""An ONNX model opened so that every tensor of its main graph can be looked at, a slice of them at a time."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from torchport.capture.origins import write_origins
from torchport.engines.base import open_session
from torchport.graph import files
from torchport.graph.exposing import expose
from torchport.records import TensorInfo
from torchport.tensors import numpy_dtype

Array = np.ndarray[Any, Any]

BUDGET = 1 << 30  # bytes of tensors held at once, beyond the models
_TORCH = "pkg.torch.onnx."


class Layered:
    """A model in one session with all tensors of its main graph as outputs.

    Attributes:
        model: the model, with these outputs.
        values: tensors that nodes of the main graph compute, by name, in order of execution.
    """

    def __init__(
        self,
        model: ir.Model | str | os.PathLike[str],
        engine: str,
        libraries: Sequence[str | os.PathLike[str]] = (),
    ) -> None:
        given = files.load(model) if isinstance(model, (str, os.PathLike)) else model
        self.outputs = [str(v.name) for v in given.graph.outputs]
        self.model = expose(given) if any(n.op_type != "Constant" for n in given.graph) else given.clone()
        if any(k.startswith(_TORCH) for n in self.model.graph for k in n.metadata_props):
            write_origins(self.model)  # torch's own exporter tells the same in another form
        self.libraries = libraries
        self.session = open_session(self.model, engine, libraries=libraries)
        shown = {o.name for o in self.session.outputs}
        self.values = {
            str(v.name): v
            for n in self.model.graph
            if n.op_type != "Constant"
            for v in n.outputs
            if v.name and v.name in shown
        }

    def slices(self, feeds: Mapping[str, Array], budget: int, names: Sequence[str]) -> list[list[str]]:
        """The tensors in order, in pieces that fit into the budget together."""
        sizes = self._sizes(feeds)
        infos = {o.name: o for o in self.session.outputs}
        pieces: list[list[str]] = [[]]
        filled = 0
        for name in names:
            needed = _bytes(infos[name], sizes)
            if pieces[-1] and filled + needed > budget:
                pieces.append([])
                filled = 0
            pieces[-1].append(name)
            filled += needed
        return pieces

    def run(self, feeds: Mapping[str, Array], names: Sequence[str]) -> dict[str, Array]:
        return self.session.run(feeds, only=names)

    def _sizes(self, feeds: Mapping[str, Array]) -> dict[str, int]:
        return {
            d: n
            for info in self.session.inputs
            for d, n in zip(info.shape or (), feeds[info.name].shape, strict=False)
            if isinstance(d, str)
        }


def _bytes(info: TensorInfo, sizes: Mapping[str, int]) -> int:
    """About how many bytes a tensor takes; a dimension nobody knows is taken for the largest known."""
    guess = max(sizes.values(), default=1)
    count = math.prod(d if isinstance(d, int) else sizes.get(str(d), guess) for d in info.shape or ())
    return int(count) * (1 if info.dtype == "string" else numpy_dtype(info.dtype).itemsize)
