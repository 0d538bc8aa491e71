"""Move a transpose behind the operators that work on each number alone, to where another one cancels it.

Transpose(p) → Relu → Transpose(q)   =   Relu → Transpose(p then q), or Relu alone if that moves no axis
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter.rules.common import no_op_transpose_rule

from torchport.irtools.node_reader import constant, integers
from torchport.irtools.traversal import all_nodes
from torchport.optimization.passes.graph_pass import GraphPass, Work, initializer, is_operator, only_use, replace
from torchport.optimization.passes.rules import apply_rules

# fmt: off
_UNARY = frozenset((
    "Abs", "Cast", "Ceil", "Clip", "Cos", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity",
    "LeakyRelu", "Log", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin",
    "Softplus", "Softsign", "Sqrt", "Tanh",
))
# fmt: on
_BINARY = frozenset(("Add", "Div", "Max", "Min", "Mul", "Pow", "Sub"))
_VIEWS = ("Reshape", "Squeeze", "Unsqueeze", "Flatten")
_MOST = 32  # operators between two transposes


def _apply(model: ir.Model, work: Work) -> None:
    for node in list(all_nodes(model)):
        if is_operator(node, "Transpose"):
            work.looks_at(node)
            _join(node, work) or _as_reshape(node, work)
        elif is_operator(node, "Reshape"):
            work.looks_at(node)
            _without_reshapes(node, work)
    apply_rules(model, work, [no_op_transpose_rule])


def _join(last: ir.Node, work: Work) -> bool:
    """Join a transpose with the nearest one before it, if there are only operators on single numbers between."""
    chain = _between(last)
    if chain is None:
        return False
    first = chain[0]
    p, q = _order(first), _order(last)
    source = first.inputs[0]
    if p is None or q is None or len(p) != len(q) or source is None or not work.permits(last):
        return False
    moved = chain[1:]
    (moved[0] if moved else last).replace_input_with(_place(moved[0] if moved else last, first.outputs[0]), source)
    for node in moved:
        out = node.outputs[0]
        if out.shape is not None and len(out.shape) == len(p):
            dims = list(out.shape)
            back = [p.index(axis) for axis in range(len(p))]
            out.shape = ir.Shape([dims[axis] for axis in back])
    last.attributes["perm"] = ir.AttrInt64s("perm", [p[axis] for axis in q])
    assert first.graph is not None
    first.graph.remove(first, safe=True)
    return True


def _as_reshape(node: ir.Node, work: Work) -> bool:
    """Make a transpose that moves only axes of size 1 a reshape, if another view is beside it to be joined with."""
    source, out, order = node.inputs[0], node.outputs[0], _order(node)
    if source is None or source.shape is None or order is None or not isinstance(node.graph, ir.Graph):
        return False
    dims = list(source.shape)
    kept = [axis for axis in order if dims[axis] != 1]
    views = [source.producer(), *(use.node for use in out.uses())]
    if kept != sorted(kept) or not any(is_operator(view, *_VIEWS) for view in views):
        return False
    sizes = [dims[axis] for axis in order]
    if sum(not isinstance(d, int) for d in sizes) > 1 or 0 in sizes or not work.permits(node):
        return False
    stated = np.array([d if isinstance(d, int) else -1 for d in sizes], dtype=np.int64)
    name = f"{out.name}_sizes"
    view = ir.Node("", "Reshape", [source, initializer(node.graph, stated, name)], name=node.name)
    replace(node, [view], [out], [view.outputs[0]])
    return True


def _without_reshapes(last: ir.Node, work: Work) -> None:
    """Swap the last two axes of four without laying the first two together before, and apart after."""
    value = last.inputs[0]
    swap = None if value is None else value.producer()
    rows = None if not is_operator(swap, "Transpose") else swap.inputs[0]
    first = None if rows is None else rows.producer()
    if value is None or rows is None or not is_operator(swap, "Transpose") or not is_operator(first, "Reshape"):
        return
    source, out = first.inputs[0], last.outputs[0]
    if source is None or _order(swap) != [0, 2, 1] or first.graph is not last.graph:
        return
    given, matrix, found = (_dims(v) for v in (source, rows, out))
    same = len(given) == len(found) == 4 and given[:2] == found[:2] and given[2:] == found[:1:-1]
    if not same or len(matrix) != 3 or matrix[1:] != given[2:] or None in given or not work.permits(last):
        return
    node = ir.Node("", "Transpose", [source], [ir.AttrInt64s("perm", [0, 1, 3, 2])], name=swap.name)
    replace(last, [node], [out], [node.outputs[0]])


def _dims(value: ir.Value) -> list[int | str | None]:
    """Return the dimensions of a value; None for one that has no name."""
    return [d if isinstance(d, int) else d.value for d in value.shape or ()]


def _between(last: ir.Node) -> list[ir.Node] | None:
    """Return the transpose before this one and the operators after it, in order; None if there is none to join."""
    found: list[ir.Node] = []
    value = last.inputs[0]
    while value is not None and len(found) <= _MOST and only_use(value):
        node = value.producer()
        if node is None or node.graph is not last.graph:
            return None
        found.append(node)
        if is_operator(node, "Transpose"):
            return found[::-1]
        value = _data(node)
    return None


def _data(node: ir.Node) -> ir.Value | None:
    """Return the input whose numbers an operator changes one by one; None for another kind of operator."""
    if is_operator(node, *_UNARY):
        return node.inputs[0]
    if not is_operator(node, *_BINARY) or len(node.inputs) != 2:
        return None
    scalars = [_is_scalar(v) for v in node.inputs]
    if sum(scalars) != 1:
        return None
    return node.inputs[scalars.index(False)]


def _is_scalar(value: ir.Value | None) -> bool:
    array = None if value is None or value.shape is None or len(value.shape) > 1 else constant(value)
    return array is not None and array.size == 1 and array.ndim <= 1


def _place(node: ir.Node, value: ir.Value) -> int:
    return next(n for n, v in enumerate(node.inputs) if v is value)


def _order(node: ir.Node) -> list[int] | None:
    perm = integers(node, "perm")
    if perm is None:
        value = node.inputs[0]
        return None if value is None or value.shape is None else list(range(len(value.shape)))[::-1]
    return perm


PASS = GraphPass(
    "transposes",
    requires="two transposes with nothing between them, or only operators that work on each number alone",
    ensures="no two such transposes are left, and none that moves no axis",
    apply=_apply,
)
