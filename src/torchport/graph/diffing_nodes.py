"""What differs between the nodes of two graphs whose nodes are matched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import onnx_ir as ir

from torchport.graph.content import apart, same_content
from torchport.graph.difference import AttributeChange, NodeChange, NodeInfo, Nodes, Renamed, Rewired
from torchport.graph.matching.nodes import Matching
from torchport.graph.matching.sides import stripped, telling_attributes
from torchport.irtools.node_reader import stored
from torchport.irtools.traversal import subgraphs
from torchport.irtools.types import dtype_name, operator_name

_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
_FEW = 8  # numbers of a tensor that are shown


def diff_nodes(
    found: Matching,
    graphs: tuple[ir.Graph, ir.Graph],
    versions: tuple[Mapping[str, int], Mapping[str, int]],
) -> Nodes:
    """Compare matched nodes, and list the others. Pure order is no difference.

    Args:
        found: which node is which.
        graphs: the two graphs.
        versions: the opsets each imports.
    """
    return _Comparison(found, graphs, versions).run()


class _Comparison:
    def __init__(
        self,
        found: Matching,
        graphs: tuple[ir.Graph, ir.Graph],
        versions: tuple[Mapping[str, int], Mapping[str, int]],
    ) -> None:
        self._found, self._graphs, self._versions = found, graphs, versions
        self._inside = {g: _label(n) for graph in graphs for n in graph.all_nodes() for g in subgraphs(n)}
        moved = {w for v, w in found.values.items() if stored(v) is not None}
        self._gone = [
            n for n in found.only_a if not (n.outputs and stored(n.outputs[0]) and n.outputs[0] in found.values)
        ]
        self._new = [n for n in found.only_b if not (n.outputs and n.outputs[0] in moved)]
        self._alone = {*found.only_a, *found.only_b}

    def run(self) -> Nodes:
        changes = (self._change(n, m) for n, m in self._found.nodes)
        return Nodes(
            before=sum(1 for _ in self._graphs[0].all_nodes()),
            after=sum(1 for _ in self._graphs[1].all_nodes()),
            matched=len(self._found.nodes),
            changed=tuple(c for c in changes if c.attributes or c.inputs or c.operator != c.operator_after),
            added=tuple(map(self._info, self._new)),
            removed=tuple(map(self._info, self._gone)),
            renamed=tuple(
                Renamed(n.name or "", m.name or "") for n, m in self._found.nodes if (n.name or "") != (m.name or "")
            ),
            tensors_renamed=tuple(self._tensors_renamed()),
        )

    def _tensors_renamed(self) -> Iterator[Renamed]:
        """What nodes make, but for the graph's outputs: those are part of the interface."""
        ends = {*self._graphs[0].outputs, *self._graphs[1].outputs}
        for n, m in self._found.nodes:
            for one, other in zip(n.outputs, m.outputs, strict=False):
                if one.name != other.name and not {one, other} & ends:
                    yield Renamed(one.name or "", other.name or "")

    def _info(self, node: ir.Node) -> NodeInfo:
        readers = [use.node for value in node.outputs for use in value.uses()]
        return NodeInfo(
            name=_label(node, operator=False),
            operator=operator_name(node),
            reads=tuple("" if v is None else str(v.name) for v in stripped(node)),
            makes=tuple(str(v.name) for v in node.outputs),
            read_by=tuple(dict.fromkeys(_label(r, operator=False) for r in readers)),
            inside=self._where(node),
        )

    def _where(self, node: ir.Node) -> str:
        return self._inside.get(node.graph, "") if isinstance(node.graph, ir.Graph) else ""

    def _change(self, n: ir.Node, m: ir.Node) -> NodeChange:
        same = self._found.why[n] != "place" or operator_name(n) == operator_name(m)  # a function may only be renamed
        return NodeChange(
            name=_label(n, operator=False),
            name_after=_label(m, operator=False),
            operator=operator_name(n),
            operator_after=operator_name(n) if same else operator_name(m),
            attributes=tuple(self._attributes(n, m)) if same else (),
            inputs=(*self._rewired(n, m), *self._ends(n, m)),
            inside=self._where(n),
        )

    # --- attributes ----------------------------------------------------------------------------------------------

    def _attributes(self, n: ir.Node, m: ir.Node) -> Iterator[AttributeChange]:
        ones, others = (telling_attributes(x, v) for x, v in zip((n, m), self._versions, strict=True))
        for name in dict.fromkeys([*ones, *others]):
            one, other = n.attributes.get(name), m.attributes.get(name)
            if not _same(one, other):
                tensors = [a for a in (one, other) if a is not None and _is_tensor(a)]
                far = apart(*(a.as_tensor() for a in tensors)) if len(tensors) == 2 else None
                yield AttributeChange(name, _shown(one), _shown(other), far)

    # --- edges ---------------------------------------------------------------------------------------------------

    def _rewired(self, n: ir.Node, m: ir.Node) -> Iterator[Rewired]:
        ones, others = stripped(n), stripped(m)
        for slot in range(max(len(ones), len(others))):
            one, other = (values[slot] if slot < len(values) else None for values in (ones, others))
            yield from self._edge(f"input {slot}", one, other)

    def _ends(self, n: ir.Node, m: ir.Node) -> Iterator[Rewired]:
        """What a node's branches give."""
        for inner, outer in zip(subgraphs(n), subgraphs(m), strict=False):
            for position in range(max(len(inner.outputs), len(outer.outputs))):
                one, other = (g.outputs[position] if position < len(g.outputs) else None for g in (inner, outer))
                yield from self._edge(f"{_holds(n, inner)} output {position}", one, other)

    def _edge(self, slot: str, one: ir.Value | None, other: ir.Value | None) -> Iterable[Rewired]:
        """Nothing is said where a node was put in, taken out or exchanged: it says itself what it reads and gives."""
        meant = None if one is None else self._found.values.get(one)
        if meant is other and (one is None) == (other is None):
            return
        makers = {v.producer() for v in (one, other) if v is not None}
        if not makers & self._alone:
            yield Rewired(slot, _source(one), _source(other))


def _holds(node: ir.Node, graph: ir.Graph) -> str:
    for name, attribute in node.attributes.items():
        if not attribute.is_ref() and attribute.type in _GRAPHS and graph in _graphs(attribute):
            return name
    return "body"


def _graphs(attribute: ir.Attr) -> list[ir.Graph]:
    return [attribute.as_graph()] if attribute.type == ir.AttributeType.GRAPH else list(attribute.as_graphs())


def _source(value: ir.Value | None) -> str:
    return "" if value is None else str(value.name)


def _label(node: ir.Node, *, operator: bool = True) -> str:
    """A node's name, or what it makes if it has none."""
    name = node.name or next((v.name for v in node.outputs if v.name), "") or ""
    return f"{node.op_type} '{name}'" if operator else name


def _is_tensor(attribute: ir.Attr) -> bool:
    return not attribute.is_ref() and attribute.type == ir.AttributeType.TENSOR


def _same(one: ir.Attr | None, other: ir.Attr | None) -> bool:
    if one is None or other is None:
        return one is other
    if one.type in _GRAPHS and one.type == other.type and not (one.is_ref() or other.is_ref()):
        return _shown(one) == _shown(other)  # what is inside is compared node by node
    if _is_tensor(one) and _is_tensor(other):
        return same_content(one.as_tensor(), other.as_tensor())
    return (one.type, one.ref_attr_name, str(one.value)) == (other.type, other.ref_attr_name, str(other.value))


def _shown(attribute: ir.Attr | None) -> str:
    """As text; nothing for an attribute that is not given."""
    if attribute is None:
        return ""
    if attribute.is_ref():
        return f"the function's {attribute.ref_attr_name}"
    if attribute.type in _GRAPHS:
        return ", ".join(f"a graph of {len(g.inputs)} inputs, {len(g.outputs)} outputs" for g in _graphs(attribute))
    if not _is_tensor(attribute):
        value = list(attribute.value) if isinstance(attribute.value, (list, tuple)) else attribute.value
        return str(value).replace(", ", ",")
    tensor = attribute.as_tensor()
    kind = f"{dtype_name(tensor.dtype)}[{','.join(map(str, tensor.shape))}]"
    return f"{kind} {np.asarray(tensor.numpy()).tolist()}" if tensor.size <= _FEW else kind
