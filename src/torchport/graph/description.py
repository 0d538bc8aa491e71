"""What a model is made of, as records: `describe` makes them, `str` shows them, `to_json` gives them to machines."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from torchport.graph.cost import Cost
from torchport.irtools.polynomials import Amount
from torchport.results import TensorInfo


@dataclasses.dataclass(frozen=True)
class Weight:
    """A tensor stored with the model; `file` is the data file it lies in, empty for the `.onnx` itself."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    file: str = ""


@dataclasses.dataclass(frozen=True)
class DtypeTotal:
    """All weights of one dtype."""

    dtype: str
    count: int
    elements: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class LocalFunction:
    """A function defined in the model: its nodes, and from how many places it is called."""

    name: str
    nodes: int
    calls: int


@dataclasses.dataclass(frozen=True)
class Subgraph:
    """A branch or loop body: the node it belongs to, and the values it takes from outside."""

    node: str
    operator: str
    attribute: str
    nodes: int
    captured: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class OwnOperator:
    """An operator of a domain that is neither ONNX's nor an engine's, and the library the metadata names for it."""

    name: str
    count: int
    library: str = ""
    sha256: str = ""
    body: bool = False


@dataclasses.dataclass(frozen=True)
class Module:
    """A module of the PyTorch model, with those inside it: nodes, parameters and multiply-adds."""

    path: str
    nodes: int
    parameters: int
    multiply_adds: int | Amount


@dataclasses.dataclass(frozen=True)
class Description:
    """What a model is made of.

    Attributes:
        path: the file, empty for a model in memory.
        opsets: versions by domain; ONNX's own domain is ``ai.onnx``.
        metadata: as stored, torchport's own entries aside.
        origin: torchport's entries: the route, the versions, why it is unproven.
        proof: the summary saved with the model, None if there is none.
        nodes: of the graph, its branches and loop bodies, and its functions.
        weights: the largest first.
        parameters: numbers in float weights and quantized ones; shapes, indices and single numbers are none.
        operators: how many nodes there are of each, the most frequent first.
        symbols: the dynamic dimensions.
        cost: of one run, symbolic in the dynamic dimensions.
        at: sizes asked for, and `cost_at` what a run takes then.
        modules: in the order of their first node; a module counts what is inside it.
    """

    path: str
    name: str
    ir_version: int
    opsets: Mapping[str, int]
    producer: str
    model_version: int | None
    metadata: Mapping[str, str]
    origin: Mapping[str, Any]
    proof: Mapping[str, Any] | None
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    nodes: int
    weights: tuple[Weight, ...]
    dtypes: tuple[DtypeTotal, ...]
    parameters: int
    operators: Mapping[str, int]
    symbols: tuple[str, ...]
    cost: Cost
    at: Mapping[str, int]
    cost_at: Cost | None
    functions: tuple[LocalFunction, ...]
    subgraphs: tuple[Subgraph, ...]
    own_operators: tuple[OwnOperator, ...]
    modules: tuple[Module, ...]

    @property
    def weight_bytes(self) -> int:
        return sum(weight.bytes for weight in self.weights)

    def __str__(self) -> str:
        from torchport.graph.description_text import text

        return text(self)

    def to_json(self) -> dict[str, Any]:
        """Plain dicts and lists; amounts as their exact terms beside a text."""
        return {**to_json(self), "weight_bytes": self.weight_bytes}


def to_json(value: Any) -> Any:
    """Records as plain dicts; JSON has no infinity, so it becomes text."""
    if isinstance(value, Amount):
        return value.to_json()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
