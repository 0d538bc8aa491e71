"""Make a change only if the model is valid after it, and infer the types behind a change again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import onnx_ir as ir

from torchport.errors import InputError
from torchport.inspection.lint.linter import lint
from torchport.irtools.dims import dim_names, dims_in, size_of
from torchport.irtools.inference import contradiction, infer_missing
from torchport.irtools.shapes import Shapes
from torchport.irtools.traversal import all_nodes, all_values, bodies, subgraphs, used_values

Undo = Callable[[], None]


def rehearsed(model: ir.Model, change: Callable[[ir.Model], int]) -> int:
    """Make a change on a copy first, weights shared, so that one which is refused leaves the model as it was."""
    change(model.clone())
    return change(model)


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


# Types and shapes that follow from a change.

_Stated = dict[ir.Value, tuple[ir.TypeProtocol | None, ir.Shape | None]]


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
    missing = {v: (v.type, v.shape) for v in all_values(model) if v.type is None or v.shape is None}
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
            None if not isinstance(d, int) and _is_made_up(d.value) and d.value not in old else d for d in value.shape
        ]
        value.shape = ir.Shape(dims)


def _is_made_up(name: str | None) -> bool:
    return name is not None and name.startswith("unk__")


def _keep_true(model: ir.Model, stated: Mapping[ir.Value, ir.Shape]) -> None:
    if not stated or contradiction(model) is not None:
        return  # the sizes of a model that contradicts itself cannot be worked out
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
