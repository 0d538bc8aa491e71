"""Compare two models' header, interface, nodes, weights and local functions: tp.graph.diff."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from torchport.files.onnx_files import ModelLike
from torchport.inspection.describe import opened
from torchport.inspection.diff.result import (
    AttributeChange,
    Change,
    Difference,
    FunctionChange,
    InterfaceChange,
    NodeChange,
    NodeInfo,
    Nodes,
    Renamed,
    Rewired,
    WeightChange,
    WeightInfo,
    Weights,
)
from torchport.inspection.diff.weights import Apart, apart, same_content
from torchport.inspection.matching.indexed_graph import stripped, telling_attributes
from torchport.inspection.matching.matcher import Matching, match
from torchport.irtools.names import name_of
from torchport.irtools.node_reader import constant_tensor
from torchport.irtools.traversal import attribute_graphs, graphs, subgraphs
from torchport.irtools.types import dtype_name, operator_name, type_text


def diff(a: ModelLike, b: ModelLike) -> Difference:
    """What differs between two models. Weights are read piece by piece, and only where they may differ.

    Args:
        a: a model or a file.
        b: what became of it.

    Raises:
        FileError: a file is missing, broken or of another format.

    Example:
        >>> found = tp.graph.diff("before.onnx", "after.onnx")
        >>> found.same, [n.name for n in found.nodes.added]
        (False, ['node_Cast_7'])
        >>> print(found)
    """
    (one, path_a), (other, path_b) = opened(a), opened(b)
    found = match(one, other)
    return Difference(
        a=path_a or "a",
        b=path_b or "b",
        header=tuple(_header(one, other)),
        interface=tuple(_interface(one.graph, other.graph, found)),
        nodes=diff_nodes(found, (one.graph, other.graph), (one.opset_imports, other.opset_imports)),
        weights=_weights(one.graph, other.graph, found),
        functions=tuple(_functions(found)),
    )


def _header(a: ir.Model, b: ir.Model) -> Iterator[Change]:
    yield from _changed({"IR version": a.ir_version}, {"IR version": b.ir_version})
    opsets = [{f"opset {d or 'ai.onnx'}": v for d, v in m.opset_imports.items()} for m in (a, b)]
    yield from _changed(*opsets)
    for name in ("producer_name", "producer_version", "domain", "model_version"):
        what = name.replace("_", " ")
        yield from _changed({what: getattr(a, name)}, {what: getattr(b, name)})
    yield from _changed({"graph name": a.graph.name}, {"graph name": b.graph.name})
    props = [{f"metadata {_readable(k)}": _readable(v) for k, v in m.metadata_props.items()} for m in (a, b)]
    yield from _changed(*props)


def _readable(given: str | bytes) -> str:
    """protobuf gives bytes where a text is no UTF-8."""
    return given.decode(errors="replace") if isinstance(given, bytes) else str(given)


def _changed(a: Mapping[str, object], b: Mapping[str, object]) -> Iterator[Change]:
    for what in dict.fromkeys([*a, *b]):
        before, after = ("" if m.get(what) is None else str(m[what]) for m in (a, b))
        if before != after or (what in a) != (what in b):
            yield Change(what, before, after)


def _interface(a: ir.Graph, b: ir.Graph, found: Matching) -> Iterator[InterfaceChange]:
    ones, others = ([v for v in g.inputs if not v.is_initializer()] for g in (a, b))
    inputs = [(v, found.values[v]) for v in ones if found.values.get(v) in others]
    yield from _ports("input", ones, others, inputs)
    outputs = _output_pairs(a, b, found)
    yield from _ports("output", a.outputs, b.outputs, outputs)
    alone = {*found.only_a, *found.only_b}
    for one, other in outputs:
        new = {one.producer(), other.producer()} & alone  # said of the node already
        if found.values.get(one) is not other and not new:
            yield InterfaceChange("output", str(one.name), "source", _made(one), _made(other))


def _made(value: ir.Value) -> str:
    producer = value.producer()
    return f"'{value.name}'" if producer is None else f"{producer.op_type} '{producer.name or value.name}'"


def _output_pairs(a: ir.Graph, b: ir.Graph, found: Matching) -> list[tuple[ir.Value, ir.Value]]:
    """By name; then by what makes them; then in order."""
    there = {v.name: v for v in b.outputs}
    pairs = {v: there[v.name] for v in a.outputs if v.name in there}
    made = [(v, found.values[v]) for v in a.outputs if found.values.get(v) in b.outputs]
    for one, other in [*made, *((a.outputs[i], b.outputs[j]) for i, j in found.outputs)]:
        if one not in pairs and other not in pairs.values():
            pairs[one] = other
    return [(v, pairs[v]) for v in a.outputs if v in pairs]


def _ports(
    kind: str, a: Sequence[ir.Value], b: Sequence[ir.Value], pairs: list[tuple[ir.Value, ir.Value]]
) -> Iterator[InterfaceChange]:
    ones, others = {v for v, _ in pairs}, {v for _, v in pairs}
    yield from (InterfaceChange(kind, str(v.name), "removed", _typed(v), "") for v in a if v not in ones)
    yield from (InterfaceChange(kind, str(v.name), "added", "", _typed(v)) for v in b if v not in others)
    for one, other in pairs:
        said = [(str(v.name), type_text(v.type), _shape(v)) for v in (one, other)]
        for what, before, after in zip(("renamed", "dtype", "shape"), *said, strict=True):
            if before != after:
                yield InterfaceChange(kind, str(one.name), what, before, after)
    kept = [str(v.name) for v in b if v in others]
    if [str(v.name) for _, v in pairs] != kept:
        yield InterfaceChange(kind, "", "order", ", ".join(str(v.name) for v, _ in pairs), ", ".join(kept))


def _shape(value: ir.Value) -> str:
    if value.shape is None:
        return "unknown"
    return "[" + ",".join(str(d if isinstance(d, int) else d.value or "?") for d in value.shape) + "]"


def _typed(value: ir.Value) -> str:
    return type_text(value.type) + _shape(value).replace("unknown", "")


def _weights(a: ir.Graph, b: ir.Graph, found: Matching) -> Weights:
    ones, others = ([v for g in graphs(graph) for v in g.initializers.values()] for graph in (a, b))
    pairs = {v: w for v, w in found.values.items() if constant_tensor(v) is not None and constant_tensor(w) is not None}
    stayed = {v: w for v, w in pairs.items() if v.is_initializer() and w.is_initializer()}
    moved = [(v, w) for v, w in pairs.items() if v.is_initializer() != w.is_initializer()]
    changes = {(v, w): _weight_change(v, w) for v, w in (*stayed.items(), *moved)}
    taken = set(pairs.values())
    return Weights(
        before=len(ones),
        after=len(others),
        matched=len(stayed),
        changed=tuple(sorted((c for c in changes.values() if c is not None), key=_size, reverse=True)),
        added=tuple(_info(v) for v in others if v not in taken),
        removed=tuple(_info(v) for v in ones if v not in pairs),
        renamed=tuple(_renamed(v, w) for v, w in stayed.items() if v.name != w.name and changes[v, w] is None),
        moved=tuple(_renamed(v, w) for v, w in moved if changes[v, w] is None),
    )


def _renamed(one: ir.Value, other: ir.Value) -> Renamed:
    return Renamed(str(one.name), str(other.name))


def _size(change: WeightChange) -> float:
    """Those of another type first, then those whose numbers are farthest off."""
    return float("inf") if change.apart is None or change.type != change.type_after else change.apart.relative


def _info(value: ir.Value) -> WeightInfo:
    tensor = constant_tensor(value)
    return WeightInfo(str(value.name), "" if tensor is None else tensor_type(tensor))


def tensor_type(tensor: ir.TensorProtocol) -> str:
    return f"{dtype_name(tensor.dtype)}[{','.join(map(str, tensor.shape))}]"


def _weight_change(one: ir.Value, other: ir.Value) -> WeightChange | None:
    a, b = constant_tensor(one), constant_tensor(other)
    if a is None or b is None or same_content(a, b):
        return None
    kinds = tensor_type(a), tensor_type(b)
    far: Apart | None = None
    if kinds[0] == kinds[1] or (a.dtype.is_floating_point() and b.dtype.is_floating_point()):
        far = apart(a, b)
    return WeightChange(str(one.name), str(other.name), *kinds, far)


def _functions(found: Matching) -> Iterator[FunctionChange]:
    yield from (FunctionChange(_called(f), "removed") for f in found.functions_only_a)
    yield from (FunctionChange(_called(f), "added") for f in found.functions_only_b)
    for one, other, inside in found.functions:
        nodes = diff_nodes(inside, (one.graph, other.graph), (one.opset_imports, other.opset_imports))
        signature = (*_changed(_signature(one), _signature(other)), *_ends(one, other, inside))
        if not nodes.same or signature:
            yield FunctionChange(_called(one), "changed", _called(other), signature, nodes)
        elif _called(one) != _called(other):
            yield FunctionChange(_called(one), "renamed", _called(other))


def _ends(one: ir.Function, other: ir.Function, inside: Matching) -> Iterator[Change]:
    """Outputs that are made by something else."""
    alone = {*inside.only_a, *inside.only_b}
    for position, (v, w) in enumerate(zip(one.outputs, other.outputs, strict=False)):
        if inside.values.get(v) is not w and not {v.producer(), w.producer()} & alone:
            yield Change(f"output {position}", _made(v), _made(w))


def _called(function: ir.Function) -> str:
    return "::".join(filter(None, function.identifier()))


def _signature(function: ir.Function) -> dict[str, object]:
    said: dict[str, object] = {
        "inputs": ", ".join(str(v.name) for v in function.inputs),
        "outputs": ", ".join(str(v.name) for v in function.outputs),
        "attributes": ", ".join(function.attributes),
    }
    return said | {f"opset {d or 'ai.onnx'}": v for d, v in function.opset_imports.items()}


# What differs between the nodes of two graphs whose nodes are matched.

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
        moved = {v: w for v, w in found.values.items() if constant_tensor(v) is not None}
        self._gone = [n for n in found.only_a if moved.keys().isdisjoint(n.outputs[:1])]
        arrived = set(moved.values())
        self._new = [n for n in found.only_b if arrived.isdisjoint(n.outputs[:1])]
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
                Renamed(name_of(n), name_of(m)) for n, m in self._found.nodes if (n.name or "") != (m.name or "")
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
        if graph in attribute_graphs(attribute):
            return name
    return "body"


def _source(value: ir.Value | None) -> str:
    return "" if value is None else str(value.name)


def _label(node: ir.Node, *, operator: bool = True) -> str:
    """A node's name, or what it makes if it has none."""
    name = name_of(node)
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
        return ", ".join(
            f"a graph of {len(g.inputs)} inputs, {len(g.outputs)} outputs" for g in attribute_graphs(attribute)
        )
    if not _is_tensor(attribute):
        value = list(attribute.value) if isinstance(attribute.value, (list, tuple)) else attribute.value
        return str(value).replace(", ", ",")
    tensor = attribute.as_tensor()
    kind = f"{dtype_name(tensor.dtype)}[{','.join(map(str, tensor.shape))}]"
    return f"{kind} {np.asarray(tensor.numpy()).tolist()}" if tensor.size <= _FEW else kind
