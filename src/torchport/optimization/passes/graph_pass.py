"""What a pass is: one kind of change, with what it requires, what it ensures, and the reason where it does nothing."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TypeGuard, get_args

import onnx_ir as ir

from torchport.irtools.metadata import CALL, MODULE, OPERATOR, SOURCE
from torchport.irtools.names import name_of
from torchport.optimization.result import ONNXRUNTIME, Pattern, Target

CONTRIB = "com.microsoft"
ORIGIN = (MODULE, SOURCE, OPERATOR, CALL)


class Work:
    """What a pass may do and what it has seen: it asks before each change, so that one can be left out or blamed.

    Args:
        target: the engine that the model is for.
        limit_bytes: the largest constant to make.
        journal: a file that always has the name of the node at work, for the case that the process dies.
        most: how many changes are allowed; to find the one that makes a model wrong.
    """

    def __init__(
        self,
        *,
        target: Target = ONNXRUNTIME,
        limit_bytes: int = 16 * 2**20,
        journal: Path | None = None,
        most: int | None = None,
    ) -> None:
        self.target: Target = target
        self.limit_bytes = limit_bytes
        self.changes = 0
        self.last = ""
        self.patterns: list[Pattern] = []
        self._most = most
        self._journal = None if journal is None else os.open(journal, os.O_RDWR | os.O_CREAT | os.O_TRUNC)

    @property
    def contrib(self) -> bool:
        """Check that operators of ONNX Runtime's own may be used."""
        return self.target == ONNXRUNTIME

    def looks_at(self, node: ir.Node) -> None:
        """Note which node is worked on."""
        if self._journal is not None:
            name = name_of(node).encode()[:500]
            os.pwrite(self._journal, name.ljust(512, b"\0"), 0)

    def permits(self, node: ir.Node) -> bool:
        """Count a change at a node, and say whether it is to be made."""
        if self._most is not None and self.changes >= self._most:
            return False
        self.changes += 1
        self.last = name_of(node)
        return True

    def found(self, kind: str, node: ir.Node, fused_into: str) -> None:
        """Report a pattern that was replaced by one operator."""
        self.patterns.append(Pattern(kind, name_of(node), fused_into, origin=node.metadata_props.get(SOURCE, "")))

    def left(self, kind: str, node: ir.Node, reason: str) -> None:
        """Report a pattern that was recognized and stays."""
        self.patterns.append(Pattern(kind, name_of(node), "", reason, node.metadata_props.get(SOURCE, "")))


@dataclasses.dataclass(frozen=True)
class GraphPass:
    """One kind of change to a graph.

    Attributes:
        name: "constant folding".
        requires: what a place must have for the pass to change it; shown where the pass changed nothing.
        ensures: what is so afterwards.
        apply: changes the model in place, as far as the work permits it.
        targets: the engines it is for.
        claims_speed: the change is kept only if it is measured not to be slower; the others have fewer nodes to show.
    """

    name: str
    requires: str
    ensures: str
    apply: Callable[[ir.Model, Work], None]
    targets: Collection[Target] = get_args(Target)
    claims_speed: bool = False


def replace(
    old: ir.Node, new: Sequence[ir.Node], old_values: Sequence[ir.Value], new_values: Sequence[ir.Value]
) -> None:
    """Put nodes in the place of a node; the new ones get its origin, its values' names, types and shapes."""
    graph = old.graph
    assert graph is not None
    for node in new:
        for key in ORIGIN:
            if key in old.metadata_props:
                node.metadata_props.setdefault(key, old.metadata_props[key])
    for was, now in zip(old_values, new_values, strict=True):
        now.type = now.type or was.type
        now.shape = now.shape if now.shape is not None else was.shape
    ir.convenience.replace_nodes_and_values(graph, old, [old], new, old_values, new_values)


def replace_value(node: ir.Node, old: ir.Value, new: ir.Value) -> bool:
    """Let everything that reads one value read another; False where the model's outputs would lose their names."""
    if old.is_graph_output():
        if new.is_graph_input() or new.is_initializer() or new.is_graph_output() or new.graph is not node.graph:
            return False
        name = old.name
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        old.name = None
        new.name = name
        new.shape = old.shape if old.shape is not None else new.shape
        new.type = old.type or new.type
    else:
        ir.convenience.replace_all_uses_with(old, new)
    return True


def initializer(graph: ir.Graph, array: object, wish: str) -> ir.Value:
    """Return a new weight of the graph, under a name that is not taken."""
    taken, name, count = graph.initializers, wish, 0
    while name in taken:
        count += 1
        name = f"{wish}_{count}"
    tensor = ir.tensor(array, name=name)  # type: ignore[arg-type]
    value = ir.Value(
        name=name, const_value=tensor, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy())
    )
    graph.register_initializer(value)
    return value


def is_operator(node: ir.Node | None, *names: str) -> TypeGuard[ir.Node]:
    """Check that a node is one of ONNX's own operators of these names."""
    return node is not None and node.domain in ("", "ai.onnx") and node.op_type in names


def only_use(value: ir.Value) -> bool:
    """Check that one input of one node is all that reads a value."""
    return len(value.uses()) == 1 and not value.is_graph_output()
