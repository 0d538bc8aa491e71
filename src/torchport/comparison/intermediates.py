"""An ONNX model opened so that every tensor of its main graph can be looked at, a slice of them at a time."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import onnx_ir as ir

from torchport.capture.origins import write_origins
from torchport.editing.extract import expose
from torchport.engines.registry import faults_of
from torchport.engines.session import open_session
from torchport.files import onnx_files
from torchport.results import TensorInfo
from torchport.tensors import Array, numpy_dtype

BUDGET = 1 << 30  # bytes of tensors held at once, beyond the models
_TORCH = "pkg.torch.onnx."


def forget_weights(model: ir.Model) -> None:
    """Take the numbers out of a model that nobody needs any more."""
    for value in model.graph.initializers.values():
        value.const_value = None


class Layered:
    """A model in one session with all tensors of its main graph as outputs.

    Attributes:
        given: the model as it was.
        model: the model, with these outputs.
        values: tensors that nodes of the main graph compute, by name, in order of execution; no sequences of them.
    """

    def __init__(
        self,
        model: ir.Model | str | os.PathLike[str],
        engine: str,
        libraries: Sequence[str | os.PathLike[str]] = (),
    ) -> None:
        self.given = onnx_files.load(model) if isinstance(model, (str, os.PathLike)) else model
        self.outputs = [str(v.name) for v in self.given.graph.outputs]
        computes = any(n.op_type != "Constant" for n in self.given.graph)
        self.model = expose(self.given) if computes else self.given.clone()
        if any(k.startswith(_TORCH) for n in self.model.graph for k in n.metadata_props):
            write_origins(self.model)  # torch's own exporter tells the same in another form
        self.libraries = libraries
        with faults_of(engine):
            self.session = open_session(self.model, engine, libraries=libraries)
        shown = {o.name for o in self.session.outputs if "(" not in o.dtype}  # not seq(tensor(float)) and the like
        self.values = {
            str(v.name): v
            for n in self.model.graph
            if n.op_type != "Constant"
            for v in n.outputs
            if v.name and v.name in shown and (v.type is None or isinstance(v.type, ir.TensorType))
        }

    def __enter__(self) -> Layered:
        return self

    def __exit__(self, *error: object) -> None:
        """Let go of the weights: a graph is full of cycles, and garbage may be collected much later."""
        forget_weights(self.model)

    def slices(self, feeds: Mapping[str, Array], budget: int, names: Sequence[str]) -> list[list[str]]:
        """The tensors in order, in pieces each of which fits into the budget; a larger tensor is a piece by itself."""
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
        with faults_of(self.session.engine):
            return self.session.run(feeds, only=names)

    def _sizes(self, feeds: Mapping[str, Array]) -> dict[str, int]:
        return {
            d: n
            for info in self.session.inputs
            for d, n in zip(info.shape or (), feeds[info.name].shape, strict=False)
            if isinstance(d, str)
        }


class Slices:
    """A model's tensors, piece by piece, as often as asked for; if all fit into the budget, the model runs once.

    Example:
        >>> slices = Slices(layered, feeds, 1 << 30)
        >>> for arrays in slices:
        ...     look_at(arrays)
    """

    def __init__(
        self, layered: Layered, feeds: Mapping[str, Array], budget: int, say: Callable[[str], None] | None = None
    ) -> None:
        self._layered, self._feeds, self.budget = layered, feeds, budget
        self._say = say or (lambda text: None)
        self._kept: dict[str, Array] | None = None
        self.values = layered.values

    def __iter__(self) -> Iterator[dict[str, Array]]:
        return self.only(self.values)

    def only(self, names: Collection[str]) -> Iterator[dict[str, Array]]:
        """The pieces of some of the tensors, in order of execution."""
        if self._kept is not None:
            yield {n: a for n, a in self._kept.items() if n in names}
            return
        wanted = [n for n in self.values if n in names]
        pieces = self._layered.slices(self._feeds, self.budget, wanted)
        for number, piece in enumerate(pieces, start=1):
            self._say(f"comparing {len(wanted)} layers, slice {number} of {len(pieces)}")
            arrays = self._layered.run(self._feeds, piece) if piece else {}
            if len(piece) == len(self.values):
                self._kept = arrays
            yield arrays


def _bytes(info: TensorInfo, sizes: Mapping[str, int]) -> int:
    """About how many bytes a tensor takes; a dimension nobody knows is taken for the largest known."""
    guess = max(sizes.values(), default=1)
    count = math.prod(d if isinstance(d, int) else sizes.get(str(d), guess) for d in info.shape or ())
    return int(count) * (1 if info.dtype == "string" else numpy_dtype(info.dtype).itemsize)
