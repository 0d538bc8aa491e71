"""What differs between two models, as records: `diff` makes them, `str` shows them."""

from __future__ import annotations

import dataclasses

from torchport.graph.content import Apart


@dataclasses.dataclass(frozen=True)
class Change:
    """Something said about a whole model or function that is said otherwise now; empty where it is not said."""

    what: str
    before: str
    after: str


@dataclasses.dataclass(frozen=True)
class InterfaceChange:
    """An input or output that is another now.

    `what` is ``added``, ``removed``, ``renamed``, ``dtype``, ``shape``, ``order`` (of all of them), or ``source``: the
    output is of the same name and type, but made by something else.
    """

    kind: str
    name: str
    what: str
    before: str
    after: str


@dataclasses.dataclass(frozen=True)
class NodeInfo:
    """A node that only one of the models has: what it reads and makes, and which nodes read that.

    `inside` names the node in whose branch or body it is, empty if it is in none.
    """

    name: str
    operator: str
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    read_by: tuple[str, ...]
    inside: str = ""


@dataclasses.dataclass(frozen=True)
class AttributeChange:
    """An attribute before and after, empty where it is not given; `apart` if it is a tensor of the same shape."""

    name: str
    before: str
    after: str
    apart: Apart | None = None


@dataclasses.dataclass(frozen=True)
class Rewired:
    """A slot of a node that reads something else: ``input 1``, or ``then_branch output 0`` for what a branch gives."""

    slot: str
    before: str
    after: str


@dataclasses.dataclass(frozen=True)
class NodeChange:
    """A node that is another now in more than its name."""

    name: str
    name_after: str
    operator: str
    operator_after: str
    attributes: tuple[AttributeChange, ...] = ()
    inputs: tuple[Rewired, ...] = ()
    inside: str = ""


@dataclasses.dataclass(frozen=True)
class Renamed:
    """A name before and after."""

    before: str
    after: str


@dataclasses.dataclass(frozen=True)
class Nodes:
    """Nodes of a graph, branches and bodies included; `before` and `after` say how many there are."""

    before: int = 0
    after: int = 0
    matched: int = 0
    changed: tuple[NodeChange, ...] = ()
    added: tuple[NodeInfo, ...] = ()
    removed: tuple[NodeInfo, ...] = ()
    renamed: tuple[Renamed, ...] = ()
    tensors_renamed: tuple[Renamed, ...] = ()

    @property
    def same(self) -> bool:
        return not (self.changed or self.added or self.removed or self.renamed or self.tensors_renamed)


@dataclasses.dataclass(frozen=True)
class WeightInfo:
    """A weight that only one of the models has."""

    name: str
    type: str


@dataclasses.dataclass(frozen=True)
class WeightChange:
    """A weight whose type or numbers are others; `apart` where its shape is the same and it holds numbers."""

    name: str
    name_after: str
    type: str
    type_after: str
    apart: Apart | None = None


@dataclasses.dataclass(frozen=True)
class Weights:
    """Weights of a model; the most different come first.

    `moved`: the same numbers, but in a `Constant` node of one model and in an initializer of the other.
    """

    before: int = 0
    after: int = 0
    matched: int = 0
    changed: tuple[WeightChange, ...] = ()
    added: tuple[WeightInfo, ...] = ()
    removed: tuple[WeightInfo, ...] = ()
    renamed: tuple[Renamed, ...] = ()
    moved: tuple[Renamed, ...] = ()

    @property
    def same(self) -> bool:
        return not (self.changed or self.added or self.removed or self.renamed or self.moved)


@dataclasses.dataclass(frozen=True)
class FunctionChange:
    """A local function that was ``added``, ``removed``, ``renamed`` (all else is the same) or ``changed``."""

    name: str
    what: str
    name_after: str = ""
    signature: tuple[Change, ...] = ()
    nodes: Nodes = Nodes()


@dataclasses.dataclass(frozen=True)
class Difference:
    """What differs between two models. Where nodes come from is not compared, nor in which order they are stored.

    Attributes:
        a: the first model's file, or ``a`` for one in memory.
        b: the same for the second.
        header: IR version, opsets, producer and metadata.
        interface: inputs and outputs.
    """

    a: str
    b: str
    header: tuple[Change, ...]
    interface: tuple[InterfaceChange, ...]
    nodes: Nodes
    weights: Weights
    functions: tuple[FunctionChange, ...]

    @property
    def same(self) -> bool:
        """Nothing differs, names included."""
        return not (self.header or self.interface or self.functions) and self.nodes.same and self.weights.same

    @property
    def only_names(self) -> bool:
        """Something differs, but only what inputs, outputs, nodes, tensors, weights and functions are called."""
        nodes, weights = self.nodes, self.weights
        real = (
            self.header or nodes.changed or nodes.added or nodes.removed or weights.changed or weights.added
            or weights.removed or weights.moved
        )  # fmt: skip
        others = [*(c.what for c in self.interface), *(f.what for f in self.functions)]
        return not self.same and not real and set(others) <= {"renamed"}

    def __str__(self) -> str:
        from torchport.graph.difference_text import text

        return text(self)
