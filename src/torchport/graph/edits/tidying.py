"""Put a model in order: what it computes stays the same, and what it says of types and shapes stays true."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

import onnx_ir as ir

from torchport.errors import InputError
from torchport.graph.amounts import size_of
from torchport.graph.edits.choosing import every_node, forget_unused_domains
from torchport.graph.edits.naming import ANNOTATION, dim_names, dims_in, each_value
from torchport.graph.linting import lint
from torchport.graph.opset_rules.inference import infer_missing
from torchport.graph.shapes import Shapes
from torchport.graph.values import subgraphs, used_by
from torchport.graph.weights import bodies, pour

_GLANCE = 1024  # elements of a weight to look at before all of it is read


def sort(model: ir.Model) -> int:
    """Put nodes behind what they need, in branches, bodies and functions too; others keep their order.

    Returns:
        How many nodes have another place.

    Raises:
        InputError: nodes need each other.

    Example:
        >>> tp.graph.sort(model)
    """
    before = {graph: list(graph) for body in bodies(model) for graph in (body, *body.subgraphs())}
    try:
        for body in bodies(model):
            body.sort()
    except ValueError as error:
        raise InputError(
            "nodes of the model need each other, so none can be first", next_step="`torchport lint` shows the circle"
        ) from error
    return sum(old is not new for graph, nodes in before.items() for old, new in zip(nodes, graph, strict=True))


def deduplicate(model: ir.Model) -> int:
    """Keep equal weights once, also where a branch or body has its own copy of one outside.

    Weights are read piece by piece, and only those that others are like at first sight. Those that are inputs or
    outputs stay, as their names are the model's interface.

    Returns:
        How many weights were taken out.

    Example:
        >>> tp.graph.deduplicate(model)
    """
    alike: dict[Hashable, list[ir.Value]] = {}
    for value in _mergeable(model):
        alike.setdefault(_first_sight(value), []).append(value)
    marks = {v: (key, _digest(v)) for key, group in alike.items() if len(group) > 1 for v in group}
    return sum(_merge(body, marks, {}) for body in bodies(model))


def _annotated(model: ir.Model) -> set[str]:
    """The tensors that quantization annotations name."""
    return {name for v in each_value(model) for name in v.meta.get(ANNOTATION, {}).values()}


def _mergeable(model: ir.Model) -> list[ir.Value]:
    named = _annotated(model)
    weights = [v for b in bodies(model) for g in (b, *b.subgraphs()) for v in g.initializers.values()]
    free = [v for v in weights if not v.is_graph_input() and not v.is_graph_output() and v.const_value is not None]
    return [v for v in free if v.name not in named and not v.meta.get(ANNOTATION)]


def _first_sight(value: ir.Value) -> Hashable:
    tensor: Any = value.const_value
    if tensor.dtype == ir.DataType.STRING:
        start: Hashable = tuple(tensor.string_data())
    else:  # to look into numbers of 4 bits would unpack them all
        start = tensor.numpy().flat[:_GLANCE].tobytes() if tensor.dtype.bitwidth >= 8 else b""
    return tensor.dtype, tuple(tensor.shape.numpy()), start


class _Digest:
    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def write(self, data: Any, /) -> None:
        self._hash.update(data)

    def value(self) -> bytes:
        return self._hash.digest()


def _digest(value: ir.Value) -> bytes:
    tensor = value.const_value
    assert tensor is not None
    digest = _Digest()
    if tensor.dtype != ir.DataType.STRING:  # of which the first sight has all
        pour(tensor, digest)
    return digest.value()


def _merge(graph: ir.Graph, marks: Mapping[ir.Value, Hashable], outer: Mapping[Hashable, ir.Value]) -> int:
    seen, count = dict(outer), 0
    for value in [v for v in graph.initializers.values() if v in marks]:
        kept = seen.setdefault(marks[value], value)
        if kept is not value:
            value.replace_all_uses_with(kept)
            del graph.initializers[str(value.name)]
            count += 1
    return count + sum(_merge(inner, marks, seen) for node in graph for inner in subgraphs(node))


def remove_unused(model: ir.Model) -> int:
    """Take out what no output needs: nodes, weights, functions and imports, in branches, bodies and functions too.

    The model's inputs stay, as do optional outputs of nodes that are needed.

    Returns:
        How many of these were taken out.

    Example:
        >>> tp.graph.remove_unused(model)
    """
    count, more = 0, 1
    while more:  # a function that is gone may have been all that called another
        named = _annotated(model)
        more = sum(_sweep(body, named) for body in bodies(model)) + drop_functions(model)
        count += more
    imports = _imports(model)
    forget_unused_domains(model)
    return count + imports - _imports(model)


def _imports(model: ir.Model) -> int:
    return len(model.graph.opset_imports) + sum(len(f.opset_imports) for f in model.functions.values())


def _sweep(graph: ir.Graph, named: set[str]) -> int:
    count = sum(_sweep(inner, named) for node in graph for inner in subgraphs(node))
    live: set[ir.Node] = set()
    waiting = [v.producer() for v in graph.outputs]
    while waiting:
        node = waiting.pop()
        if node is not None and node.graph is graph and node not in live:
            live.add(node)
            waiting += [v.producer() for v in used_by(node)]
    dead = [node for node in graph if node not in live]
    take_out(dead)
    return count + len(dead) + drop_weights([v for v in graph.initializers.values() if v.name not in named])


def take_out(nodes: list[ir.Node]) -> None:
    """Remove nodes of one graph that nobody else needs, with what their branches use from outside."""
    for node in nodes:
        for graph in subgraphs(node):
            for inner in graph.all_nodes():
                for index in range(len(inner.inputs)):
                    inner.replace_input_with(index, None)
            for held in (graph, *graph.subgraphs()):
                held.outputs.clear()
    if nodes and nodes[0].graph is not None:
        nodes[0].graph.remove(nodes, safe=True)


def drop_weights(weights: Iterable[ir.Value]) -> int:
    """Remove those weights that nothing uses and that are no input or output."""
    unused = [v for v in weights if not v.uses() and not v.is_graph_input() and not v.is_graph_output()]
    for value in unused:
        assert isinstance(value.graph, ir.Graph)
        del value.graph.initializers[str(value.name)]
    return len(unused)


def drop_functions(model: ir.Model) -> int:
    """Remove the functions that the model does not call."""
    called: set[ir.OperatorIdentifier] = set()
    waiting = [model.graph]
    while waiting:
        calls = {n.op_identifier() for n in waiting.pop().all_nodes()} & set(model.functions)
        waiting += [model.functions[i].graph for i in calls - called]
        called |= calls
    unused = [i for i in model.functions if i not in called]
    for identifier in unused:
        del model.functions[identifier]
    return len(unused)


# --- what follows from a change ---------------------------------------------------------------------------------------

Undo = Callable[[], None]


def attempt(model: ir.Model, change: Callable[[], Undo], what: str) -> None:
    """Make a change if the model is as sound after it as before; else take it back and say why.

    Args:
        model: what is changed.
        change: makes the change, and gives back what undoes it.
        what: what cannot be done, for the error.
    """
    undo = change()
    after = _errors(model)
    if not after:
        return
    undo()
    before = _errors(model)
    new = [text for text in after if text not in before]
    if new:
        raise InputError(f"{what}: {new[0]}", next_step="nothing was changed")
    change()


def new_errors(before: ir.Model, after: ir.Model) -> list[str]:
    """What is wrong with a model that was not wrong with another."""
    found = _errors(after)
    old = _errors(before) if found else []
    return [text for text in found if text not in old]


def _errors(model: ir.Model) -> list[str]:
    return [fault.message for fault in lint(model) if fault.severity == "error"]


def infer_again(model: ir.Model, nodes: Iterable[ir.Node] = ()) -> Undo:
    """Find types and shapes anew: of what some nodes give and of all that follows from it; and fill in missing ones.

    What was stated stays where it is still true. That is seen where inference finds the same, or at two sets of sizes
    for the dynamic dimensions: inference knows no ``height//2``, but knows 112 of 224.

    Returns:
        What puts all of it back.
    """
    changed = set(nodes)
    affected = _affected(model, changed) if changed else []
    stated: _Stated = {v: (v.type, v.shape) for node in affected for v in node.outputs}
    missing = {v: (v.type, v.shape) for v in each_value(model) if v.type is None or v.shape is None}
    _infer_again(model, affected, changed, stated, missing)
    stale = _stale(affected, stated)
    if stale:
        stated.update({v: (v.type, v.shape) for v in stale})
        _infer_again(model, affected, changed, stated, missing)
    return lambda: _put_back(missing | stated)


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


_Stated = dict[ir.Value, tuple[ir.TypeProtocol | None, ir.Shape | None]]


def _put_back(stated: _Stated) -> None:
    for value, (kind, shape) in stated.items():
        value.type, value.shape = kind, shape


def _affected(model: ir.Model, changed: set[ir.Node]) -> list[ir.Node]:
    """The changed nodes and those that get something from them, in order; a function's calls change with it."""
    while True:
        functions = {i for i, f in model.functions.items() if not changed.isdisjoint(f.all_nodes())}
        calls = {n for n in every_node(model) if n.op_identifier() in functions}
        if calls <= changed:
            break
        changed |= calls
    return [node for body in bodies(model) for node in _affected_in(body, changed)]


def _affected_in(graph: ir.Graph, changed: set[ir.Node]) -> list[ir.Node]:
    found: list[ir.Node] = []
    touched: set[ir.Value] = set()
    for node in graph:
        inner = [n for g in subgraphs(node) for n in g.all_nodes()]
        if node in changed or not changed.isdisjoint(inner) or not touched.isdisjoint(used_by(node)):
            found += [*inner, node]  # what a branch gives is known before what the node gives
            touched.update(node.outputs)
    return found


def _forget_made_up(value: ir.Value, stated: ir.Shape | None) -> None:
    """onnx calls a dimension that it cannot know ``unk__0``: nobody else should."""
    old = {d.value for d in stated or () if isinstance(d, ir.SymbolicDim)}
    if value.shape is not None:
        dims = [
            None if not isinstance(d, int) and _is_made_up(d.value) and d.value not in old else d for d in value.shape
        ]
        value.shape = ir.Shape(dims)


def _is_made_up(name: str | None) -> bool:
    return name is not None and name.startswith("unk__")


def _keep_true(model: ir.Model, stated: Mapping[ir.Value, ir.Shape]) -> None:
    if not stated:
        return
    names = sorted(dim_names(model) | {n for shape in stated.values() for n in dims_in(shape)})
    true = set(stated)
    for first, step in ((192, 64), (211, 2 * 3 * 5 * 7)):  # sizes that strides divide, and sizes that they do not
        sizes = {name: first + step * n for n, name in enumerate(names)}
        found = Shapes(model, sizes)
        true &= {v for v, shape in stated.items() if _at(shape, sizes) == found.of(v)}
    for value in true:
        value.shape = stated[value]


def _at(shape: ir.Shape, sizes: Mapping[str, int]) -> tuple[int, ...] | None:
    found = [d if isinstance(d, int) else d.value if d.value is None else size_of(d.value, sizes) for d in shape]
    whole = [d for d in found if isinstance(d, int)]
    return tuple(whole) if len(whole) == len(found) else ()


def _keep_untouched(affected: list[ir.Node], changed: set[ir.Node], stated: _Stated) -> None:
    """A node whose inputs turned out the same gives what it gave: operators of one's own are not inferred."""
    moved = {v for v in stated if v.producer() is None}
    for node in affected:
        needed = [*used_by(node), *(v for graph in subgraphs(node) for v in graph.outputs)]
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
