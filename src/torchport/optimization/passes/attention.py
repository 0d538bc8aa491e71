"""Recognize attention that is written out, and make it ONNX's Attention (opset 23).

    softmax(s · Q Kᵀ + M) V,   with or without a scale s and a mask M; rows with every key masked may be zeros

Where heads are laid apart before and together after, by a reshape and a transpose, these go too.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from torchport.irtools.node_reader import FLOATS, attribute, constant, input_at, integers
from torchport.irtools.traversal import all_nodes
from torchport.optimization.passes.dataflow import made_by, number, only_user, other_input, size_of
from torchport.optimization.passes.graph_pass import GraphPass, Work, initializer, is_operator, replace
from torchport.optimization.result import OPENVINO

OPSET = 23  # the first with Attention


@dataclasses.dataclass
class Found:
    """Attention that is written out.

    Attributes:
        last: the product with the values.
        q, k, v: [batch, heads, sequence, size].
        swapped: the keys are [batch, heads, size, sequence].
        scale: of the scores.
        masks: what is added to the scores, in order; a number beside a condition is put in their place.
        guarded: rows with every key masked are zeros.
        reason: why it cannot be one operator; empty if it can.
    """

    last: ir.Node
    q: ir.Value
    k: ir.Value
    v: ir.Value
    swapped: bool
    scale: float
    mask: ir.Value | None = None
    chosen: tuple[ir.Value, float, bool] | None = None
    guarded: bool = False
    reason: str = ""


def find(model: ir.Model) -> Iterator[Found]:
    """Iterate over attention in a model."""
    for node in list(all_nodes(model)):
        if is_operator(node, "Softmax"):
            found = _attention(node)
            if found is not None:
                yield found


def _attention(softmax: ir.Node) -> Found | None:
    weights, guarded = _guard(softmax)
    last = only_user(weights, "MatMul")
    if last is None or last.inputs[0] is not weights or last.inputs[1] is None or softmax.inputs[0] is None:
        return None
    scale, scores, mask, chosen = _scores(softmax.inputs[0])
    product = made_by(scores, "MatMul")
    if product is None or product.inputs[0] is None or product.inputs[1] is None:
        return None
    q, k = product.inputs[0], product.inputs[1]
    for_q, q = _unscaled(q)
    swapped = True
    for_k, k = _unscaled(k)
    transpose = made_by(k, "Transpose")
    if transpose is not None and integers(transpose, "perm") == [0, 1, 3, 2] and transpose.inputs[0] is not None:
        k, swapped = transpose.inputs[0], False
        more, k = _unscaled(k)
        for_k *= more
    found = Found(last, q, k, last.inputs[1], swapped, scale * for_q * for_k, mask, chosen, guarded)
    found.reason = _reason(found, softmax)
    return found


def _guard(softmax: ir.Node) -> tuple[ir.Value, bool]:
    """Return the weights of the values, and whether rows of NaN are made zeros."""
    weights = softmax.outputs[0]
    users = [use.node for use in weights.uses()]
    is_nan = next((n for n in users if is_operator(n, "IsNaN")), None)
    where = None if is_nan is None else only_user(is_nan.outputs[0], "Where")
    if len(users) == 2 and where in users and where is not None and number(where.inputs[1]) == 0.0:
        return where.outputs[0], where.inputs[2] is weights
    return weights, False


def _scores(
    value: ir.Value,
) -> tuple[float, ir.Value, ir.Value | None, tuple[ir.Value, float, bool] | None]:
    """Return the scale, the product below it, what is added, and what is put in place of scores by a condition."""
    mask, chosen, scale = None, None, 1.0
    add = made_by(value, "Add")
    if add is not None:
        below = next((v for v in add.inputs if _is_product(v)), None)
        if below is None:
            return scale, value, mask, chosen
        mask, value = other_input(add, below), below
    where = made_by(value, "Where")
    if where is not None and mask is None and where.inputs[0] is not None:
        for place in (1, 2):
            fill, below = number(where.inputs[place]), where.inputs[3 - place]
            if fill is not None and below is not None and _is_product(below):
                chosen, value = (where.inputs[0], fill, place == 1), below
                break
    node = made_by(value, "Mul", "Div")
    if node is not None:
        factor = number(node.inputs[1]) if node.op_type == "Div" else next(filter(None, map(number, node.inputs)), None)
        if factor and node.op_type == "Div" and node.inputs[0] is not None:
            return 1 / factor, node.inputs[0], mask, chosen
        below = next((v for v in node.inputs if number(v) is None), None)
        if factor and node.op_type == "Mul" and below is not None:
            return factor, below, mask, chosen
    return scale, value, mask, chosen


def _is_product(value: ir.Value | None) -> bool:
    node = made_by(value, "MatMul", "Mul", "Div")
    if node is None or node.op_type == "MatMul":
        return node is not None
    return any(made_by(v, "MatMul") for v in node.inputs) and any(number(v) is not None for v in node.inputs)


def _unscaled(value: ir.Value) -> tuple[float, ir.Value]:
    """Return a number that a value is multiplied with, and the value without it."""
    node = made_by(value, "Mul", "Div")
    if node is None:
        return 1.0, value
    factor = number(node.inputs[1])
    if node.op_type == "Div":
        return (1 / factor, node.inputs[0]) if factor and node.inputs[0] is not None else (1.0, value)
    if factor is None:
        factor = number(node.inputs[0])
        below = node.inputs[1]
    else:
        below = node.inputs[0]
    return (factor, below) if factor and below is not None else (1.0, value)


def _reason(found: Found, softmax: ir.Node) -> str:
    """Return why attention cannot be one operator."""
    ranks = {len(v.shape) if v.shape is not None else None for v in (found.q, found.k, found.v)}
    axis = attribute(softmax, "axis")
    if ranks != {4}:
        return "its queries, keys and values are not known to have four dimensions"
    if axis not in (None, -1, 3):
        return "its softmax is not over the keys"
    if found.q.dtype not in FLOATS:
        return "it does not compute in floats"
    heads = [v.shape[1] for v in (found.q, found.k, found.v) if v.shape is not None]
    if len(set(heads)) > 1 or not isinstance(heads[0], int):
        return "the number of heads is not known, or not the same for keys and queries"
    if not _sizes_known(found):
        return "the size of a head is not known"
    if found.mask is not None and found.mask.shape is None:
        return "the shape of its mask is not known"
    if found.chosen is not None and found.chosen[0].shape is None:
        return "the shape of its mask is not known"
    return ""


def _sizes_known(found: Found) -> bool:
    return all(v.shape is not None and isinstance(v.shape[3], int) for v in (found.q, found.v))


def _apply(model: ir.Model, work: Work) -> None:
    for found in find(model):
        opset, graph = model.opset_imports.get("", 0), found.last.graph
        work.looks_at(found.last)
        if found.reason:
            work.left("attention", found.last, found.reason)
        elif work.target == OPENVINO:
            work.left("attention", found.last, "OpenVINO recognizes it by itself")
        elif opset < OPSET:
            reason = f"Attention is an operator from opset {OPSET} on, the model has {opset}"
            work.left("attention", found.last, reason)
        elif isinstance(graph, ir.Graph) and work.permits(found.last):
            node = _fuse(found, graph)
            work.found("attention", node, "Attention")
    for node in list(all_nodes(model)):
        if is_operator(node, "Attention") and "q_num_heads" not in node.attributes:
            work.looks_at(node)
            _together(node, work)


def _fuse(found: Found, graph: ir.Graph) -> ir.Node:
    new: list[ir.Node] = []
    keys = found.k
    if found.swapped:
        new.append(_transposed(found.k))
        keys = new[-1].outputs[0]
    mask = _mask(found, graph, new)
    size = found.q.shape[3] if found.q.shape is not None else None
    plain = isinstance(size, int) and math.isclose(found.scale, 1 / math.sqrt(size), rel_tol=1e-5)
    attributes = [] if plain else [ir.AttrFloat32("scale", found.scale)]
    inputs = [found.q, keys, found.v] + ([mask] if mask is not None else [])
    node = ir.Node("", "Attention", inputs, attributes, name=found.last.name)
    replace(found.last, [*new, node], [found.last.outputs[0]], [node.outputs[0]])
    return node


def _transposed(keys: ir.Value) -> ir.Node:
    """Return a transpose of keys to [batch, heads, sequence, size]."""
    node = ir.Node("", "Transpose", [keys], [ir.AttrInt64s("perm", [0, 1, 3, 2])])
    dims = list(keys.shape or ())
    node.outputs[0].shape = ir.Shape([dims[0], dims[1], dims[3], dims[2]])
    node.outputs[0].type = keys.type
    return node


def _mask(found: Found, graph: ir.Graph, new: list[ir.Node]) -> ir.Value | None:
    """Return the mask of the scores' last two dimensions."""
    mask = found.mask
    if found.chosen is not None:
        condition, fill, where_true = found.chosen
        assert found.q.dtype is not None
        kind, base = found.q.dtype.numpy(), found.last.outputs[0].name
        there = initializer(graph, np.array(fill, dtype=kind), f"{base}_masked")
        zero = initializer(graph, np.array(0, dtype=kind), f"{base}_kept")
        picked = [condition, there, zero] if where_true else [condition, zero, there]
        new.append(ir.Node("", "Where", picked))
        mask = new[-1].outputs[0]
        mask.shape, mask.type = condition.shape, found.q.type
    if mask is None:
        return None
    if mask.dtype == ir.DataType.FLOAT and _has_lowest(mask):
        new.append(ir.Node("", "Max", [mask, _unmasked_limit(graph)]))
        new[-1].outputs[0].shape, new[-1].outputs[0].type = mask.shape, mask.type
        mask = new[-1].outputs[0]
    dims = list(mask.shape or ())
    if len(dims) >= 2 and dims[-2] != 1 and dims[-1] != 1:
        return mask
    return _expanded(found, mask, graph, new)


_LOWEST = -3e38  # engines take float32's lowest number, -3.4e38, for a key that is masked
_LIMIT = -1e30  # a number that they do not, and that leaves as little of the score


def _has_lowest(value: ir.Value | None, depth: int = 8) -> bool:
    """Check for float32's lowest number in a mask: rows in which every key has it are a mean, not zeros."""
    array = constant(value)
    if array is not None:
        return array.dtype.kind == "f" and bool(((array < _LOWEST) & np.isfinite(array)).any())
    node = made_by(value, "Where", "Mul", "Add", "Sub", "Expand", "Unsqueeze", "Slice", "Reshape", "Min", "Max")
    if node is None or depth == 0:
        return False
    return any(_has_lowest(v, depth - 1) for v in node.inputs if v is not None and v.dtype == value.dtype)  # type: ignore[union-attr]


def _unmasked_limit(graph: ir.Graph) -> ir.Value:
    known = graph.initializers.get("lowest_of_mask")
    return known if known is not None else initializer(graph, np.float32(_LIMIT), "lowest_of_mask")


def _expanded(found: Found, mask: ir.Value, graph: ir.Graph, new: list[ir.Node]) -> ir.Value:
    """Return the mask with a row for each query and a column for each key: engines want both."""
    base = found.last.outputs[0].name
    axis = 3 if found.swapped else 2
    queries, keys = size_of(found.q, 2, graph), size_of(found.k, axis, graph)
    sizes = ir.Node("", "Concat", [queries.outputs[0], keys.outputs[0]], [ir.AttrInt64("axis", 0)])
    expanded = ir.Node("", "Expand", [mask, sizes.outputs[0]])
    for node in (queries, keys, sizes):
        node.outputs[0].type = ir.TensorType(ir.DataType.INT64)
        node.outputs[0].shape = ir.Shape([2 if node is sizes else 1])
    expanded.outputs[0].type = mask.type
    lead = list(mask.shape or ())[:-2]
    expanded.outputs[0].shape = ir.Shape([*lead, found.q.shape[2], found.k.shape[axis]])  # type: ignore[index]
    expanded.outputs[0].name = f"{base}_mask"
    new += [queries, keys, sizes, expanded]
    return expanded.outputs[0]


# --- heads that are laid apart and together ---------------------------------------------------------------------------


def _together(node: ir.Node, work: Work) -> None:
    """Take and give [batch, sequence, heads * size], where heads are laid apart and together around the node."""
    transpose = only_user(node.outputs[0], "Transpose")
    reshape = None if transpose is None else only_user(transpose.outputs[0], "Reshape")
    inputs = [_rows(value) for value in node.inputs[:3]]
    if transpose is None or reshape is None or integers(transpose, "perm") != [0, 2, 1, 3] or None in inputs:
        return
    out, heads = reshape.outputs[0], node.inputs[0].shape[1]  # type: ignore[union-attr,index]
    if out.shape is None or len(out.shape) != 3 or not _keeps_rows(node, out) or not isinstance(heads, int):
        return
    if not work.permits(node):
        return
    for place, value in enumerate(inputs):
        node.replace_input_with(place, value)
    node.attributes["q_num_heads"] = ir.AttrInt64("q_num_heads", heads)
    node.attributes["kv_num_heads"] = ir.AttrInt64("kv_num_heads", heads)
    node.outputs[0].shape = out.shape
    graph = reshape.graph
    assert graph is not None
    name, uses_output = out.name, out.is_graph_output()
    ir.convenience.replace_all_uses_with(out, node.outputs[0], replace_graph_outputs=True)
    graph.remove([reshape], safe=True)
    graph.remove([transpose], safe=True)
    if uses_output:
        node.outputs[0].name = name


def _rows(value: ir.Value | None) -> ir.Value | None:
    """Return [batch, sequence, heads * size] of which a value is the heads, laid apart."""
    transpose = made_by(value, "Transpose")
    reshape = None if transpose is None else made_by(transpose.inputs[0], "Reshape")
    if transpose is None or reshape is None or integers(transpose, "perm") != [0, 2, 1, 3]:
        return None
    rows, apart = reshape.inputs[0], reshape.outputs[0]
    if rows is None or rows.shape is None or apart.shape is None or len(rows.shape) != 3 or len(apart.shape) != 4:
        return None
    sizes = constant(input_at(reshape, 1))
    if sizes is None and not _alike(rows, apart):
        return None
    if sizes is not None and not _alike(rows, apart) and list(sizes[:2]) != [0, 0]:
        return None
    width, heads, size = rows.shape[2], apart.shape[2], apart.shape[3]
    whole = isinstance(heads, int) and isinstance(size, int) and width == heads * size
    return rows if whole else None


def _alike(a: ir.Value, b: ir.Value) -> bool:
    """Check that the first two dimensions of two values are the same."""
    pairs = zip(list(a.shape or ())[:2], list(b.shape or ())[:2], strict=True)
    return all(x == y and (isinstance(x, int) or x.value is not None) for x, y in pairs)


def _keeps_rows(node: ir.Node, out: ir.Value) -> bool:
    """Check that the output has the queries' rows and the values' width."""
    value = node.inputs[2]
    assert value is not None
    heads, size = list(value.shape or ())[1::2]
    return isinstance(heads, int) and isinstance(size, int) and list(out.shape or ())[2] == heads * size


PASS = GraphPass(
    "attention",
    requires=f"softmax(QKᵀ)V that is written out, of four dimensions, in a model of opset {OPSET} or later",
    ensures="it is one Attention, without reshapes and transposes around it where heads are laid apart for it",
    apply=_apply,
    claims_speed=True,
)
