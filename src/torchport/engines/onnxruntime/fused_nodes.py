"""Which nodes of a model each node of ONNX Runtime's optimized graph computes.

ONNX Runtime saves the graph that it runs. Nodes there keep their names or the tensors they make, as a rule, and nothing
else of where they come from.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence

import onnx
import onnx_ir as ir

from torchport.engines.node_owners import owners_of
from torchport.irtools.node_reader import is_constant_node
from torchport.irtools.traversal import subgraphs

_REORDERS = ("ReorderInput", "ReorderOutput", "MemcpyFromHost", "MemcpyToHost")
_MOVED = ("Transpose", "Cast", "Reshape")  # an optimizer inserts these: one may make another node's tensor
_ADDED = "/MatMulAddFusion"  # ends the name of a Gemm; the name before it is that of the MatMul
_BLOCKED = "_nchwc"  # ends the name of a node in the blocked layout; the name before it is that of a tensor
_QUANTIZED = re.compile(r"_token_\d+$")  # ends the name of an int8 kernel; the name before it is that of a node
_LONGEST_CHAIN = 5  # of a convolution with what is fused behind it


@dataclasses.dataclass(frozen=True)
class Running:
    """A node that ONNX Runtime runs.

    Attributes:
        name: its name; empty if it has none.
        op_type: its operator.
        domain: of the operator; empty if it is ONNX's own.
        nodes: the model's nodes that it computes.
        beside: where it was inserted, the nodes whose data it changes.
        bodies: what runs inside it, by graph.
    """

    name: str
    op_type: str
    domain: str
    nodes: tuple[ir.Node, ...]
    beside: tuple[ir.Node, ...]
    bodies: tuple[tuple[Running, ...], ...] = ()


def running_nodes(model: ir.Model, optimized: onnx.ModelProto) -> tuple[tuple[Running, ...], tuple[ir.Node, ...]]:
    """Return what runs, in the order it runs, and the model's nodes that nothing computes any more.

    Args:
        model: the model, without local functions.
        optimized: what ONNX Runtime made of it; weights need not be there.
    """
    found = _matched(model.graph, optimized.graph)
    owned = {node for running in found for node in _computed(running)}
    return found, tuple(n for n in model.graph.all_nodes() if n not in owned and not is_constant_node(n))


def _computed(running: Running) -> list[ir.Node]:
    return [*running.nodes, *(n for body in running.bodies for inner in body for n in _computed(inner))]


def _matched(graph: ir.Graph, optimized: onnx.GraphProto) -> tuple[Running, ...]:
    groups: list[list[ir.Node]] = [[] for _ in optimized.node]
    owners = _owners(graph, optimized.node)
    for node in graph:
        if node in owners:
            groups[owners[node]].append(node)
    makers = {name: n for n, node in enumerate(optimized.node) for name in node.output}
    takers = {name: n for n, node in reversed(list(enumerate(optimized.node))) for name in node.input if name}
    return tuple(
        _running(node, groups[n], () if groups[n] else _beside(node, groups, makers, takers))
        for n, node in enumerate(optimized.node)
    )


def _running(node: onnx.NodeProto, nodes: Sequence[ir.Node], beside: Sequence[ir.Node]) -> Running:
    held = {a.name: a.g for a in node.attribute if a.HasField("g")}
    own = next((n for n in nodes if n.op_type == node.op_type and subgraphs(n)), None)
    pairs = [(own.attributes.get(name), inner) for name, inner in held.items()] if own is not None else []
    bodies = [_matched(a.as_graph(), inner) for a, inner in pairs if a is not None]
    domain = "" if node.domain == "ai.onnx" else node.domain
    return Running(node.name, node.op_type, domain, tuple(nodes), tuple(beside), tuple(bodies))


def _beside(
    node: onnx.NodeProto,
    groups: Sequence[Sequence[ir.Node]],
    makers: Mapping[str, int],
    takers: Mapping[str, int],
) -> Sequence[ir.Node]:
    """Return the nodes that make an inserted node's input, else those that take its output."""
    near = [makers[name] for name in node.input if name in makers]
    near += [takers[name] for name in node.output if name in takers]
    return next((groups[n] for n in near if groups[n]), ())


def _owners(graph: ir.Graph, optimized: Sequence[onnx.NodeProto]) -> dict[ir.Node, int]:
    by_name = _unique((str(n.name), n) for n in graph if n.name)
    makers = {str(v.name): n for n in graph for v in n.outputs if v.name}
    anchors: dict[ir.Node, int] = {}
    for position, node in enumerate(optimized):
        for anchor in _anchors(node, by_name, makers):
            anchors.setdefault(anchor, position)
    made = {name for node in optimized for name in (*node.input, *node.output)}
    blocked = {n for n, node in enumerate(optimized) if node.name.endswith(_BLOCKED)}  # reads tensors of new names
    moved = {n for n, node in enumerate(optimized) if node.op_type in _MOVED}  # computes nothing else
    return owners_of(graph, anchors, made=made, there=set(anchors), closed=blocked | moved)


def _anchors(node: onnx.NodeProto, by_name: Mapping[str, ir.Node], makers: Mapping[str, ir.Node]) -> list[ir.Node]:
    """Return the model's nodes that an optimized node computes for certain: those of its name and of its outputs."""
    if node.op_type in _REORDERS:
        return []
    names = [*node.output, *([node.name.removesuffix(_BLOCKED)] if node.name.endswith(_BLOCKED) else [])]
    found = [makers[name] for name in names if name in makers]
    own = by_name.get(_QUANTIZED.sub("", node.name.removesuffix(_ADDED)))
    if own is not None and not _computes(node, own):
        own = None
    if node.op_type in _MOVED:
        found = [n for n in found if n.op_type == node.op_type]
    if node.name.endswith(_BLOCKED):
        found = [n for last in found for n in _back_to(node.op_type, last)]
    return list(dict.fromkeys([*([own] if own is not None else []), *found]))


def _computes(node: onnx.NodeProto, own: ir.Node) -> bool:
    """Check that a node computes the one that had its name, as QLinearConv computes a Conv."""
    if own.op_type == node.op_type or node.name.endswith(_ADDED):
        return True
    return node.op_type.startswith("Q") and node.op_type.endswith(own.op_type)


def _back_to(op_type: str, last: ir.Node) -> list[ir.Node]:
    """Return a node with those before it, back to the first of an operator: from Relu to the Conv it is fused into."""
    chain = [last]
    while chain[-1].op_type != op_type and len(chain) < _LONGEST_CHAIN:
        maker = chain[-1].inputs[0].producer() if chain[-1].inputs and chain[-1].inputs[0] is not None else None
        if maker is None:
            return [last]
        chain.append(maker)
    return chain if chain[-1].op_type == op_type else [last]


def _unique(pairs: Iterable[tuple[str, ir.Node]]) -> dict[str, ir.Node]:
    found: dict[str, ir.Node | None] = {}
    for name, node in pairs:
        found[name] = None if name in found else node
    return {name: node for name, node in found.items() if node is not None}
