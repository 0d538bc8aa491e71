"""A fault of a model with its advice, and the scopes of a message that the rules read."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator
from typing import Literal

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

from torchport.irtools.metadata import SOURCE
from torchport.irtools.serialization import proto_subgraphs

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


@dataclasses.dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        severity: ``error`` for a model that is no valid ONNX or will not run, ``warning`` for one that is likely not
            meant so, ``note`` for what does no harm.
        rule: what was looked for, ``unused-node`` say.
        message: what is wrong.
        next_step: what to do.
        node: the node it is about, if it is about one.
        tensor: the value or weight it is about, if it is about one.
        source: the Python line the node comes from.
    """

    severity: Severity
    rule: str
    message: str
    next_step: str
    node: str = ""
    tensor: str = ""
    source: str = ""

    def __str__(self) -> str:
        where = f" ({self.source})" if self.source else ""
        return f"{self.severity}: {self.message}{where} [{self.rule}]"


# The graphs and functions of a message, with who makes and who needs each name in them.


@dataclasses.dataclass(eq=False)
class Scope:
    """A graph or function: where each name is made, and which node of the outer scope it is in.

    Attributes:
        made: the node that makes each name, -1 for inputs and weights.
        needs: for each node, the nodes of this scope it needs, also for its branches and bodies.
        users: for each name, the nodes that use it; the count of nodes stands for the scope's outputs.
    """

    body: GraphProto | FunctionProto
    label: str
    outer: Scope | None = None
    at: int = 0
    made: dict[str, int] = dataclasses.field(default_factory=dict)
    needs: dict[int, set[int]] = dataclasses.field(default_factory=dict)
    users: dict[str, set[int]] = dataclasses.field(default_factory=dict)
    missing: list[tuple[int, str]] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.made = dict.fromkeys([*self.inputs, *self.weights], -1)
        for index, node in enumerate(self.body.node):
            for name in filter(None, node.output):
                self.made.setdefault(name, index)

    @property
    def inputs(self) -> list[str]:
        return [v if isinstance(v, str) else v.name for v in self.body.input]

    @property
    def outputs(self) -> list[str]:
        return [v if isinstance(v, str) else v.name for v in self.body.output]

    @property
    def weights(self) -> list[str]:
        if isinstance(self.body, FunctionProto):
            return []
        return [t.name for t in self.body.initializer] + [t.values.name for t in self.body.sparse_initializer]

    def use(self, name: str, index: int) -> bool:
        """Note that node `index` needs `name`, in whichever scope it is made; False if in none."""
        scope = self
        while name not in scope.made:
            if scope.outer is None:
                return False
            scope, index = scope.outer, scope.at
        scope.users.setdefault(name, set()).add(index)
        if scope.made[name] >= 0:
            scope.needs.setdefault(index, set()).add(scope.made[name])
        return True

    def live(self) -> set[int]:
        """The nodes whose work reaches an output."""
        pending = list(self.needs.get(len(self.body.node), ()))
        found: set[int] = set()
        while pending:
            index = pending.pop()
            if index not in found:
                found.add(index)
                pending.extend(self.needs.get(index, ()))
        return found


def read(proto: ModelProto) -> list[Scope]:
    """All scopes of a model, outer ones before inner ones."""
    pending = collections.deque([Scope(proto.graph, "")])
    pending.extend(Scope(function, f"function '{function.name}'") for function in proto.functions)
    found: list[Scope] = []
    while pending:
        scope = pending.popleft()
        found.append(scope)
        for index, node in enumerate(scope.body.node):
            for name in filter(None, node.input):
                if not scope.use(name, index):
                    scope.missing.append((index, name))
            for attribute in node.attribute:
                for graph in proto_subgraphs(attribute):
                    inner = f"'{attribute.name}' of {title(node)}"
                    pending.append(Scope(graph, f"{inner} in {scope.label}" if scope.label else inner, scope, index))
        for name in scope.outputs:
            scope.use(name, len(scope.body.node))
    return found


def nodes(scopes: list[Scope]) -> Iterator[tuple[Scope, NodeProto]]:
    for scope in scopes:
        for node in scope.body.node:
            yield scope, node


def title(node: NodeProto) -> str:
    """How a node is called in messages."""
    name = node.name or next(iter(filter(None, node.output)), "")
    return f"node '{name}' ({node.op_type})" if node.name else f"the {node.op_type} that makes '{name}'"


def named(node: NodeProto) -> str:
    return node.name or next(iter(filter(None, node.output)), "")


def source(node: NodeProto) -> str:
    """The Python line a node comes from."""
    return next((str(entry.value) for entry in node.metadata_props if entry.key == SOURCE), "")
