"""Join a matrix product and the bias added to it into one Gemm, with a transpose of a factor, if there is one.

onnxscript has a rule for it that does not look at the bias: one of more than two dimensions is no bias of a Gemm.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from torchport.irtools.node_reader import FLOATS, attribute, constant, input_at, integers
from torchport.irtools.traversal import all_nodes
from torchport.optimization.passes.graph_pass import GraphPass, Work, initializer, is_operator, only_use, replace
from torchport.tensors import Array


def _apply(model: ir.Model, work: Work) -> None:
    for node in list(all_nodes(model)):
        if is_operator(node, "Add") and len(node.inputs) == 2:
            work.looks_at(node)
            _join(node, work)
        elif is_operator(node, "Reshape"):
            work.looks_at(node)
            _without_reshapes(node, work)
        elif is_operator(node, "MatMul"):
            work.looks_at(node)
            _scale_once(node, work)


def _join(node: ir.Node, work: Work) -> None:
    for place in (0, 1):
        value, bias = node.inputs[place], node.inputs[1 - place]
        product = None if value is None else value.producer()
        if value is None or bias is None or not is_operator(product, "MatMul") or not only_use(value):
            continue
        a, b = product.inputs
        if product.graph is not node.graph or not (_is_matrix(a) and _is_matrix(b)) or not _is_bias(bias, b):
            continue
        if any(is_operator(_maker(v), "DequantizeLinear") for v in (a, b)):
            continue  # engines look for MatMul there, to compute in integers
        if value.dtype not in FLOATS or not work.permits(node):
            continue
        _put_gemm(node, product, bias)
        return


def _maker(value: ir.Value | None) -> ir.Node | None:
    return None if value is None else value.producer()


def _is_matrix(value: ir.Value | None) -> bool:
    return value is not None and value.shape is not None and len(value.shape) == 2


def _is_bias(bias: ir.Value, b: ir.Value | None) -> bool:
    """Check that a bias is a number for each column: others may be larger than the product."""
    if bias.shape is None or len(bias.shape) != 1 or b is None or b.shape is None:
        return False
    return bias.shape[0] in (1, b.shape[1]) and isinstance(bias.shape[0], int)


def _put_gemm(node: ir.Node, product: ir.Node, bias: ir.Value) -> None:
    factors, attributes = [], []
    for value, name in zip(product.inputs, ("transA", "transB"), strict=True):
        before = None if value is None else value.producer()
        swaps = is_operator(before, "Transpose") and before is not None and integers(before, "perm") in (None, [1, 0])
        factors.append(before.inputs[0] if swaps and before is not None else value)
        attributes += [ir.AttrInt64(name, 1)] if swaps else []
    gemm = ir.Node("", "Gemm", [*factors, bias], attributes, name=product.name)
    replace(node, [gemm], [node.outputs[0]], [gemm.outputs[0]])
    if product.graph is not None and not product.outputs[0].uses():
        product.graph.remove(product, safe=True)


def _without_reshapes(last: ir.Node, work: Work) -> None:
    """Make a product and an Add of a Gemm between two reshapes that only lay rows together and apart again."""
    value = last.inputs[0]
    gemm = None if value is None else value.producer()
    if value is None or not is_operator(gemm, "Gemm") or not only_use(value) or gemm.graph is not last.graph:
        return
    rows, weights, bias = gemm.inputs[0], gemm.inputs[1], input_at(gemm, 2)
    first = None if rows is None else rows.producer()
    if rows is None or weights is None or bias is None or not is_operator(first, "Reshape"):
        return
    source, graph = first.inputs[0], last.graph
    array = constant(weights)
    if source is None or array is None or not isinstance(graph, ir.Graph) or not _is_bias(bias, gemm.outputs[0]):
        return
    plain = all(attribute(gemm, name) in (None, 1.0) for name in ("alpha", "beta")) and not attribute(gemm, "transA")
    if not plain or not _lays_rows_together(source, rows, last.outputs[0]) or not work.permits(last):
        return
    if attribute(gemm, "transB"):
        weights = _transposed(graph, weights, array)
    product = ir.Node("", "MatMul", [source, weights], name=gemm.name)
    total = ir.Node("", "Add", [product.outputs[0], bias])
    product.outputs[0].type = value.type
    product.outputs[0].shape = last.outputs[0].shape
    replace(last, [product, total], [last.outputs[0]], [total.outputs[0]])
    graph.remove(gemm, safe=True)


def _transposed(graph: ir.Graph, weights: ir.Value, array: Array) -> ir.Value:
    """Return the transposed weights; once, where several products share them."""
    name = f"{weights.name}_transposed"
    known = graph.initializers.get(name)
    return known if known is not None else initializer(graph, np.ascontiguousarray(array.T), name)


def _lays_rows_together(source: ir.Value, rows: ir.Value, out: ir.Value) -> bool:
    """Check that all axes but the last are those of the source again, and the last ones stay by themselves."""
    shapes = [source.shape, rows.shape, out.shape]
    if any(shape is None for shape in shapes):
        return False
    given, matrix, found = (list(shape or ()) for shape in shapes)
    same = len(given) == len(found) and all(_same(a, b) for a, b in zip(given[:-1], found[:-1], strict=True))
    return len(given) > 2 and same and len(matrix) == 2 and isinstance(given[-1], int) and given[-1] == matrix[1]


def _same(a: int | ir.SymbolicDim, b: int | ir.SymbolicDim) -> bool:
    return a == b and (isinstance(a, int) or a.value is not None)


def _scale_once(node: ir.Node, work: Work) -> None:
    """Multiply a product by one number, not each of its factors by one."""
    muls = [None if value is None else value.producer() for value in node.inputs]
    parts = [_scaled(mul) for mul in muls]
    if None in parts or not all(only_use(value) for value in node.inputs if value is not None):
        return
    (a, s), (b, t) = parts  # type: ignore[misc]  # neither is None
    graph = node.graph
    if not isinstance(graph, ir.Graph) or s.dtype != t.dtype or not work.permits(node):
        return
    product = ir.Node("", "MatMul", [a, b], name=node.name)
    product.outputs[0].type, product.outputs[0].shape = node.outputs[0].type, node.outputs[0].shape
    factor = initializer(graph, (s.reshape(()) * t.reshape(())).astype(s.dtype), f"{node.outputs[0].name}_scale")
    total = ir.Node("", "Mul", [product.outputs[0], factor])
    replace(node, [product, total], [node.outputs[0]], [total.outputs[0]])
    for mul in muls:
        if mul is not None and mul.graph is not None and not mul.outputs[0].uses():
            mul.graph.remove(mul, safe=True)


def _scaled(node: ir.Node | None) -> tuple[ir.Value, Array] | None:
    """Return what a Mul with one number multiplies, and the number."""
    if not is_operator(node, "Mul"):
        return None
    for place in (0, 1):
        number, value = constant(node.inputs[place]), node.inputs[1 - place]
        if number is not None and number.size == 1 and number.ndim <= 1 and value is not None:
            return value, number
    return None


PASS = GraphPass(
    "matrix product and bias",
    requires="a MatMul of two matrices that one Add with a number for each column reads, a Gemm between reshapes of "
    "rows, or a product of two factors that are both scaled",
    ensures="the first is one Gemm, the second one MatMul and one Add, and the third is scaled once",
    apply=_apply,
)
