"""Infer the types and shapes of new nodes, and of everything behind a change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx
import onnx_ir as ir

from torchport.errors import InputError
from torchport.inspection.lint.operators import clean
from torchport.irtools.dims import Dims, dim_names, dims_in, is_generated
from torchport.irtools.inference import InferenceError, contradiction, infer_missing, infer_shapes
from torchport.irtools.names import where
from torchport.irtools.serialization import state_ranks
from torchport.irtools.shapes import Shapes
from torchport.irtools.traversal import Match, Scope, all_nodes, all_values, bodies, subgraphs, used_values
from torchport.irtools.types import agrees, described

_SMALL = 1024  # bytes of a constant worth showing to inference


def settle_types(nodes: Sequence[ir.Node], scope: Scope, model: ir.Model, title: str) -> None:
    """Give new nodes the types and shapes that follow from their inputs, or refuse what does not fit together."""
    if not nodes:
        return
    view = ir.GraphView([], [], nodes=nodes)
    for node in ir.traversal.RecursiveGraphIterator(view):
        for value in node.outputs:
            value.type = value.shape = None
    made = {v for n in nodes for v in n.outputs}
    outer = [v for v in dict.fromkeys(v for n in nodes for v in used_values(n)) if v not in made]
    proto = _message(nodes, outer, scope, model)
    inferred = ir.from_proto(_inferred(proto, title, strict=all(v.type is not None for v in outer)))
    for node, typed in zip(
        ir.traversal.RecursiveGraphIterator(view), ir.traversal.RecursiveGraphIterator(inferred.graph), strict=True
    ):
        for value, other in zip(node.outputs, typed.outputs, strict=True):
            value.type, value.shape = other.type, _nameable(other.shape, outer)


def _nameable(shape: ir.Shape | None, outer: Sequence[ir.Value]) -> ir.Shape | None:
    """A shape without the names onnx makes up for what it does not know: it makes up the same elsewhere."""
    if shape is None or not any(isinstance(d, ir.SymbolicDim) and is_generated(d.value) for d in shape):
        return shape
    known = {d.value for v in outer for d in v.shape or () if isinstance(d, ir.SymbolicDim)}
    dims = [d if isinstance(d, int) else d.value for d in shape]
    return ir.Shape([None if isinstance(d, str) and is_generated(d) and d not in known else d for d in dims])


def _inferred(proto: onnx.ModelProto, title: str, *, strict: bool) -> onnx.ModelProto:
    try:
        onnx.checker.check_model(_checkable(proto)) if strict else None
        return infer_shapes(proto, strict=strict, check_type=strict)
    except (InferenceError, onnx.checker.ValidationError) as error:
        if "instead is null" in str(error):  # behind an operator of one's own nobody knows the type
            return infer_shapes(proto)
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise InputError(
            f"{title} does not fit: {clean(ValueError(lines[0] if lines else ''))}",
            next_step="compare its inputs, attributes and opset with the operator's definition",
        ) from error


def _checkable(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The message as the checker wants it: an output must have a type, and nothing follows from it here."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    del copy.graph.output[:]
    state_ranks(copy)
    return copy


def _message(nodes: Sequence[ir.Node], outer: list[ir.Value], scope: Scope, model: ir.Model) -> onnx.ModelProto:
    """A model of the new nodes alone, for onnx to look at."""
    proto = onnx.ModelProto(ir_version=max(model.ir_version, 8))
    proto.graph.name = "nodes"
    for domain, version in scope.opset_imports.items():
        proto.opset_import.add(domain=domain, version=version)
    proto.graph.node.extend(ir.serde.serialize_node(node) for node in nodes)
    called = {n.op_identifier() for n in ir.traversal.RecursiveGraphIterator(ir.GraphView([], [], nodes=nodes))}
    if called.intersection(model.functions):
        proto.functions.extend(ir.serde.serialize_function(f) for f in model.functions.values())
    for value in outer:
        tensor = ir.convenience.get_const_tensor(value) if not value.is_graph_input() else None
        if tensor is not None and tensor.dtype != ir.DataType.STRING and tensor.nbytes <= _SMALL:
            shown = proto.graph.initializer.add()
            shown.CopyFrom(ir.serde.serialize_tensor(ir.tensor(tensor.numpy())))
            shown.name = str(value.name)
        else:
            proto.graph.input.add().CopyFrom(ir.serde.serialize_value(value))
    for value in (v for n in nodes for v in n.outputs if v.name):
        proto.graph.output.add(name=value.name)
    return proto


def check_agrees(old: ir.Value, new: ir.Value, match: Match) -> None:
    """Raises `InputError` where the new value cannot be what the old one was."""
    if not agrees(old, new):
        raise InputError(
            f"'{old.name}' is {described(old)}, what would be put there gives {described(new)}",
            where=where(match.nodes[-1]),
            next_step="end the new nodes with a Cast or Reshape to the old type and shape",
        )


# Types and shapes that follow from a change.

_Stated = dict[ir.Value, tuple[ir.TypeProtocol | None, ir.Shape | None]]


def infer_again(model: ir.Model, nodes: Iterable[ir.Node] = ()) -> None:
    """Find types and shapes anew: of what some nodes give and of all that follows from it; and fill in missing ones.

    What was stated stays where it is still true. That is seen where inference finds the same, or at two sets of sizes
    for the dynamic dimensions: inference knows no ``height//2``, but knows 112 of 224.
    """
    changed = set(nodes)
    affected = _affected(model, changed) if changed else []
    stated: _Stated = {v: (v.type, v.shape) for node in affected for v in node.outputs}
    missing = {v: (v.type, v.shape) for v in all_values(model) if v.type is None or v.shape is None}
    _infer_again(model, affected, changed, stated, missing)
    stale = _stale(affected, stated)
    if stale:
        stated.update({v: (v.type, v.shape) for v in stale})
        _infer_again(model, affected, changed, stated, missing)


def _infer_again(
    model: ir.Model, affected: list[ir.Node], changed: set[ir.Node], stated: _Stated, missing: _Stated
) -> None:
    for value in stated:
        value.shape = None
        value.type = None if value.producer() is not None else value.type
    infer_missing(model)
    for value, (kind, shape) in (missing | stated).items():
        value.type = value.type if value.type is not None else kind
        _forget_made_up(value, shape)
    _keep_true(model, {v: shape for v, (_, shape) in stated.items() if shape is not None and v.shape != shape})
    _keep_untouched(affected, changed, stated)
    _keep_ranks(model, stated)


def _stale(affected: list[ir.Node], stated: _Stated) -> list[ir.Value]:
    """Inputs of bodies whose shapes are stated for what comes in no more. Others stay: onnxruntime wants them."""
    pairs = [p for node in affected for g in subgraphs(node) for p in zip(node.inputs, g.inputs, strict=False)]
    return [v for outer, v in pairs if outer is not None and outer in stated and outer.shape != stated[outer][1]]


def _put_back(stated: _Stated) -> None:
    for value, (kind, shape) in stated.items():
        value.type, value.shape = kind, shape


def _affected(model: ir.Model, changed: set[ir.Node]) -> list[ir.Node]:
    """The changed nodes and those that get something from them, in order; a function's calls change with it."""
    while True:
        functions = {i for i, f in model.functions.items() if not changed.isdisjoint(f.all_nodes())}
        calls = {n for n in all_nodes(model) if n.op_identifier() in functions}
        if calls <= changed:
            break
        changed |= calls
    return [node for body in bodies(model) for node in _affected_in(body, changed)]


def _affected_in(graph: ir.Graph, changed: set[ir.Node]) -> list[ir.Node]:
    found: list[ir.Node] = []
    touched: set[ir.Value] = set()
    for node in graph:
        inner = [n for g in subgraphs(node) for n in g.all_nodes()]
        if node in changed or not changed.isdisjoint(inner) or not touched.isdisjoint(used_values(node)):
            found += [*inner, node]  # what a branch gives is known before what the node gives
            touched.update(node.outputs)
    return found


def _forget_made_up(value: ir.Value, stated: ir.Shape | None) -> None:
    """onnx calls a dimension that it cannot know ``unk__0``: nobody else should."""
    old = {d.value for d in stated or () if isinstance(d, ir.SymbolicDim)}
    if value.shape is not None:
        dims = [
            None if not isinstance(d, int) and is_generated(d.value) and d.value not in old else d for d in value.shape
        ]
        value.shape = ir.Shape(dims)


def _keep_true(model: ir.Model, stated: Mapping[ir.Value, ir.Shape]) -> None:
    if not stated or contradiction(model) is not None:
        return  # the sizes of a model that contradicts itself cannot be worked out
    dims = Dims.of(model)
    names = sorted(dim_names(model) | {n for shape in stated.values() for n in dims_in(shape, dims)})
    true = set(stated)
    for first, step in ((192, 64), (211, 2 * 3 * 5 * 7)):  # sizes that strides divide, and sizes that they do not
        sizes = {name: first + step * n for n, name in enumerate(names)}
        found = Shapes(model, sizes)
        true &= {v for v, shape in stated.items() if _at(shape, sizes, dims) == found.of(v)}
    for value in true:
        value.shape = stated[value]


def _at(shape: ir.Shape, sizes: Mapping[str, int], dims: Dims) -> tuple[int, ...] | None:
    found = [d if isinstance(d, int) else d.value if d.value is None else dims.size(d.value, sizes) for d in shape]
    whole = [d for d in found if isinstance(d, int)]
    return tuple(whole) if len(whole) == len(found) else ()


def _keep_untouched(affected: list[ir.Node], changed: set[ir.Node], stated: _Stated) -> None:
    """A node whose inputs turned out the same gives what it gave: operators of one's own are not inferred."""
    moved = {v for v in stated if v.producer() is None}
    for node in affected:
        needed = [*used_values(node), *(v for graph in subgraphs(node) for v in graph.outputs)]
        if node not in changed and moved.isdisjoint(needed):
            _put_back({v: stated[v] for v in node.outputs})
        else:
            moved.update(
                v for v in node.outputs if v.shape != stated[v][1] or v.type != stated[v][0] or _may_be_a_shape(v)
            )


def _may_be_a_shape(value: ir.Value) -> bool:
    """Whether what is in it may decide on shapes: then it matters that it changed, not only its own shape."""
    return value.shape is None or len(value.shape) < 2


def _keep_ranks(model: ir.Model, stated: _Stated) -> None:
    """An output of the model must have a shape: of one that nobody knows the rank at least is taken to be the same."""
    for value in model.graph.outputs:
        shape = stated.get(value, (None, None))[1]
        if value.shape is None and shape is not None:
            value.shape = ir.Shape([None] * len(shape))


def follow(model: ir.Model, changed: Sequence[ir.Value], *, reshaped: bool) -> None:
    """Infer the types and shapes of all that comes from values which have changed theirs.

    Unlike `infer_again` it takes a new type into the bodies of loops, and leaves alone what stands behind an operator
    of one's own: that gives what it gave.

    Args:
        model: where they are.
        changed: the values.
        reshaped: whether their shapes changed. If not, shapes stay where inference, which does not see into a loop that
            may change them, finds none.
    """
    while changed:
        stale = {v: (v.type, v.shape) for v in _downstream(model, changed)}
        for value in stale:
            value.type = value.shape = None
        infer_missing(model)
        for value, (kind, shape) in stale.items():
            value.type = kind if value.type is None else value.type
            value.shape = shape if value.shape is None and not reshaped else value.shape
        changed = [v for one in (*changed, *stale) for v in _in_bodies(one, reshaped)]


def _downstream(model: ir.Model, changed: Sequence[ir.Value]) -> list[ir.Value]:
    """What is made from some values, as far as onnx can tell its type: not behind an operator of one's own."""
    holders = {graph: node for node in all_nodes(model) for graph in subgraphs(node)}
    found: dict[ir.Value, None] = {}
    waiting = list(changed)
    while waiting:
        value = waiting.pop()
        nodes = [use.node for use in value.uses()]
        if value.is_graph_output() and value.graph in holders:
            nodes.append(holders[value.graph])
        for node in nodes:
            if node.domain in ("", "ai.onnx") or node.op_identifier() in model.functions:
                new = [v for v in node.outputs if v not in found]
                found.update(dict.fromkeys(new))
                waiting += new
    return list(found)


def _in_bodies(value: ir.Value, reshaped: bool) -> list[ir.Value]:
    """The inputs of loops' bodies that state another type than the value which goes round there has now."""
    found: list[ir.Value] = []
    for node, index in value.uses():
        if node.domain or not (node.op_type == "Scan" or (node.op_type == "Loop" and index >= 2)):
            continue
        inner = [g.inputs[index] for g in subgraphs(node) if index < len(g.inputs)]
        found += [v for v in inner if v.type != value.type or (reshaped and v.shape is not None)]
    for one in found:
        one.type, one.shape = value.type, None if reshaped else one.shape
    return found
