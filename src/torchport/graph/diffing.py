"""Say what differs between two models: header, interface, nodes, weights, local functions."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir

from torchport.graph.content import Apart, apart, same_content
from torchport.graph.describing import opened
from torchport.graph.difference import (
    Change,
    Difference,
    FunctionChange,
    InterfaceChange,
    Renamed,
    WeightChange,
    WeightInfo,
    Weights,
)
from torchport.graph.diffing_nodes import diff_nodes
from torchport.graph.matching.nodes import Matching, match
from torchport.irtools.node_reader import stored
from torchport.irtools.types import dtype_name, type_text


def diff(a: ir.Model | str | os.PathLike[str], b: ir.Model | str | os.PathLike[str]) -> Difference:
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
    ones, others = ([v for g in (graph, *graph.subgraphs()) for v in g.initializers.values()] for graph in (a, b))
    pairs = {v: w for v, w in found.values.items() if stored(v) is not None and stored(w) is not None}
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
    tensor = stored(value)
    return WeightInfo(str(value.name), "" if tensor is None else tensor_type(tensor))


def tensor_type(tensor: ir.TensorProtocol) -> str:
    return f"{dtype_name(tensor.dtype)}[{','.join(map(str, tensor.shape))}]"


def _weight_change(one: ir.Value, other: ir.Value) -> WeightChange | None:
    a, b = stored(one), stored(other)
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
