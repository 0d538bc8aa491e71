"""Graphs that make ONNX Runtime crash or compute wrong numbers, turned into equal ones that work."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from torchport.engines.protocol import Workaround


def apply(model: ir.Model) -> list[Workaround]:
    """Apply every workaround that the model needs, in place; return those that changed a node."""
    done = [Workaround(name, change(model)) for name, change in _WORKAROUNDS.items()]
    return [workaround for workaround in done if workaround.nodes]


# Shapes of a graph that make ONNX Runtime crash, turned into equal ones that do not.
#
# Transpose → Cast → MatMul, where more than the last two axes are turned: its MatmulTransposeFusion leaves a graph that
# a later step reads past the end of (seen in 1.31.1; a segmentation fault when the session is made). Casting first
# and turning then is the same.


def _cast_before_transpose(model: ir.Model) -> int:
    """Turn Transpose → Cast → MatMul into Cast → Transpose → MatMul, everywhere in the model."""
    changed = 0
    for node in list(model.graph.all_nodes()):
        for value in node.inputs if node.op_type == "MatMul" else ():
            cast = value.producer() if value is not None else None
            turn = _behind(cast) if cast is not None else None
            if cast is not None and turn is not None:
                _swap(turn, cast)
                changed += 1
    return changed


def _behind(cast: ir.Node) -> ir.Node | None:
    """The transposition that feeds a cast."""
    given = cast.inputs[0] if cast.op_type == "Cast" else None
    turn = given.producer() if given is not None else None
    return turn if turn is not None and turn.op_type == "Transpose" else None


def _swap(turn: ir.Node, cast: ir.Node) -> None:
    """Others may use what `turn` gives, so it stays if they do."""
    given, result = turn.inputs[0], cast.outputs[0]
    graph = cast.graph
    assert given is not None
    assert graph is not None
    first = ir.node("Cast", [given], dict(cast.attributes))
    second = ir.node("Transpose", [first.outputs[0]], dict(turn.attributes))
    first.outputs[0].name = f"{result.name}.unturned"
    first.outputs[0].type, first.outputs[0].shape = result.type, given.shape
    second.outputs[0].type, second.outputs[0].shape = result.type, result.shape
    for old, new in ((cast, first), (turn, second)):
        new.metadata_props.update(old.metadata_props)
    graph.insert_before(cast, [first, second])
    result.replace_all_uses_with(second.outputs[0], replace_graph_outputs=True)
    second.outputs[0].name, result.name = result.name, f"{result.name}.unused"
    for old in (cast, turn):
        if not old.outputs[0].uses() and not old.outputs[0].is_graph_output():
            assert old.graph is not None
            old.graph.remove(old, safe=True)


# A Pad with zeros before a MaxPool, which ONNX Runtime (1.31) makes one: the pool then pads with minus infinity.
#
# Where all numbers of a window are negative, 0 is the right answer and the fused pool gives another. Max of one input
# changes nothing, and ONNX Runtime does not look past it.


def _separate_pad_and_pool(model: ir.Model) -> int:
    """Put a Max between each Pad and the MaxPool that follows it."""
    changed = 0
    for node in list(model.graph.all_nodes()):
        padded = node.inputs[0] if node.op_type == "MaxPool" else None
        pad = padded.producer() if padded is not None else None
        if padded is not None and pad is not None and pad.op_type == "Pad" and len(node.outputs) == 1:
            kept = ir.node("Max", [padded])
            kept.outputs[0].type, kept.outputs[0].shape = padded.type, padded.shape
            kept.metadata_props.update(node.metadata_props)
            assert node.graph is not None
            node.graph.insert_before(node, kept)
            node.replace_input_with(0, kept.outputs[0])
            changed += 1
    return changed


# A float64 number before or after a MatMul, which ONNX Runtime (1.31) makes the product's float32 `alpha`.
#
# The scale of an attention is such a number: 1/sqrt(2) comes out 2e-8 off. Max of one input changes nothing, and ONNX
# Runtime does not look past it.

_BETWEEN = ("Transpose", "MatMul")  # a transpose becomes part of the product first


def _separate_product_and_scale(model: ir.Model) -> int:
    """Put a Max between each product and a number that float32 cannot hold."""
    changed = 0
    for node in list(model.graph.all_nodes()):
        if node.op_type not in ("Mul", "Div") or node.domain or node.outputs[0].dtype != ir.DataType.DOUBLE:
            continue
        for place, value in enumerate(node.inputs):
            other = node.inputs[1 - place]
            if value is None or other is None or not _loses(value):
                continue
            out = node.outputs[0]
            if any(use.node.op_type in _BETWEEN for use in out.uses()):
                _hold(out, node)
                changed += 1
            made = other.producer()
            if made is not None and made.op_type in _BETWEEN:
                _hold(other, made)
                changed += 1
    return changed


def _loses(value: ir.Value) -> bool:
    """Check that it is one number that float32 cannot hold."""
    tensor = ir.convenience.get_const_tensor(value)
    if tensor is None or tensor.size != 1:
        return False
    number = tensor.numpy().reshape(-1)[0]
    return bool(np.float64(np.float32(number)) != number)


def _hold(value: ir.Value, after: ir.Node) -> None:
    held = ir.node("Max", [value])
    held.outputs[0].type, held.outputs[0].shape = value.type, value.shape
    held.metadata_props.update(after.metadata_props)
    assert after.graph is not None
    after.graph.insert_after(after, held)
    for use in [use for use in value.uses() if use.node is not held]:
        use.node.replace_input_with(use.idx, held.outputs[0])


# A Transpose before the product of a matrix and a vector: ONNX Runtime (1.31) makes both one FusedMatMul, which
# multiplies by the matrix as it was before.
#
# Kᵀ u is u K, and u Kᵀ is K u: the vector goes to the other side, and nothing is turned.


def _vector_on_the_other_side(model: ir.Model) -> int:
    """Swap the operands of each product of a vector and a matrix whose last two axes are swapped before."""
    changed = 0
    for node in list(model.graph.all_nodes()):
        if node.op_type != "MatMul" or node.domain:
            continue
        for place, value in enumerate(node.inputs):
            vector, turn = node.inputs[1 - place], value.producer() if value is not None else None
            if vector is None or vector.shape is None or len(vector.shape) != 1 or not _swaps_last(turn):
                continue
            assert turn is not None
            node.replace_input_with(1 - place, turn.inputs[0])
            node.replace_input_with(place, vector)
            if not turn.outputs[0].uses() and not turn.outputs[0].is_graph_output() and turn.graph is not None:
                turn.graph.remove(turn, safe=True)
            changed += 1
            break
    return changed


def _swaps_last(turn: ir.Node | None) -> bool:
    """Check that it is a Transpose of the last two axes alone."""
    if turn is None or turn.op_type != "Transpose" or turn.inputs[0] is None:
        return False
    shape = turn.inputs[0].shape
    given = turn.attributes.get_ints("perm")
    if given is None:
        return shape is not None and len(shape) == 2
    order = list(range(len(given)))
    return list(given) == [*order[:-2], order[-1], order[-2]]


# Products of quantized numbers that ONNX Runtime would change, turned into equal ones that it leaves as they are.
#
# Overflow. On x86 without VNNI, ONNX Runtime multiplies 8 bits without sign by 8 bits with one in steps of two, and
# keeps the sum of the two in 16 bits: 255 · 127 + 255 · 127 does not fit and is cut off in silence. Without sign on
# both sides it takes another way that does not. A weight w of int8 is the same as w + 128 of uint8, with a zero point
# 128 higher. It takes the first way for MatMulInteger, and when it sees DequantizeLinear on both sides of a product.
#
# Rounded biases. Between such dequantizations and a QuantizeLinear, ONNX Runtime rounds a bias of floats to int32, so
# that now and then an answer falls on the next step of the quantization. A bias that is added afterwards stays as it
# is. (By Add after a Gemm and by Sum after a MatMul: ONNX Runtime moves the others back into the product.)

_PRODUCTS = {"MatMul", "Gemm", "Conv", "ConvTranspose"}
_SHIFT = 128


def _avoid_integer_products(model: ir.Model) -> int:
    """Shift every constant weight of int8 beside numbers of uint8, and take floating biases out of products."""
    changed = 0
    for node in list(model.graph.all_nodes()):
        if node.op_type == "MatMulInteger":
            changed += _shift_factor(node, model.graph)
        elif node.op_type in _PRODUCTS:
            left, right = (v.producer() if v is not None else None for v in node.inputs[:2])
            shifted = parted = False
            if _dequantizes(left, ir.DataType.UINT8) and right is not None and _dequantizes(right, ir.DataType.INT8):
                shifted = _shift(right, model.graph, value=0, zero_point=2)
            if _is_quantized(left) and _is_quantized(right):
                parted = _part_from_bias(node)
            changed += shifted or parted
    return changed


def _shift_factor(node: ir.Node, top: ir.Graph) -> bool:
    left, right = node.inputs[:2]
    if left is not None and right is not None and left.dtype == ir.DataType.UINT8 and right.dtype == ir.DataType.INT8:
        turn = right.producer()
        through = turn if turn is not None and turn.op_type == "Transpose" else None  # as torch keeps weights
        return _shift(node, top, value=1, zero_point=3, through=through)
    return False


def _is_quantized(node: ir.Node | None) -> bool:
    return node is not None and node.op_type == "DequantizeLinear"


def _part_from_bias(node: ir.Node) -> bool:
    """Add a bias after the product and not in it; return False if there is none."""
    if node.op_type == "MatMul":
        additions = {u for u, _ in node.outputs[0].uses() if u.op_type == "Add"}
        for addition in additions:
            addition.op_type = "Sum"
        return bool(additions)
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is None or _is_quantized(bias.producer()) or node.attributes.get_float("beta", 1.0) != 1.0:
        return False
    graph, result = node.graph, node.outputs[0]
    assert graph is not None
    assert result.shape is not None
    node.resize_inputs(2)
    if node.op_type != "Gemm":  # one for each channel, spread over the picture
        axes = ir.node("Constant", [], {"value_ints": list(range(1, len(result.shape) - 1))})
        spread = ir.node("Unsqueeze", [bias, axes.outputs[0]])
        graph.insert_before(node, [axes, spread])
        bias = spread.outputs[0]
    added = ir.node("Add", [result, bias])
    added.metadata_props.update(node.metadata_props)
    result.replace_all_uses_with(added.outputs[0], replace_graph_outputs=True)
    added.replace_input_with(0, result)
    added.outputs[0].type, added.outputs[0].shape = result.type, result.shape
    added.outputs[0].name, result.name = result.name, f"{result.name}.without_bias"
    graph.insert_after(node, added)
    return True


def _dequantizes(node: ir.Node | None, dtype: ir.DataType) -> bool:
    return (
        node is not None
        and node.op_type == "DequantizeLinear"
        and node.inputs[0] is not None
        and node.inputs[0].dtype == dtype
    )


def _shift(node: ir.Node, top: ir.Graph, *, value: int, zero_point: int, through: ir.Node | None = None) -> bool:
    """Make the integers at input `value` and their zero point at input `zero_point` 128 higher, if both are constant.

    Args:
        top: the graph that holds the weights.
        through: a transposition between the constant and the node.

    Returns:
        True if they are constant.
    """
    given = (through or node).inputs[0 if through is not None else value]
    zeros = node.inputs[zero_point] if len(node.inputs) > zero_point else None
    if given is None or given.const_value is None or (zeros is not None and zeros.const_value is None):
        return False
    graph = node.graph
    assert graph is not None
    numbers = given.const_value.numpy().astype(np.int16) + _SHIFT
    old = zeros.const_value.numpy() if zeros is not None and zeros.const_value is not None else _no_zeros(node)
    new = _constant(top, f"{given.name}.uint8", numbers)
    if through is not None:
        turned = ir.node("Transpose", [new], dict(through.attributes))
        turned.outputs[0].name = f"{new.name}.turned"
        turned.outputs[0].type = ir.TensorType(ir.DataType.UINT8)
        turned.outputs[0].shape = through.outputs[0].shape
        graph.insert_before(node, turned)
        new = turned.outputs[0]
    node.replace_input_with(value, new)
    zero = _constant(top, f"{given.name}.uint8.zero_point", old.astype(np.int16) + _SHIFT)
    node.resize_inputs(max(len(node.inputs), zero_point + 1))
    node.replace_input_with(zero_point, zero)
    return True


def _no_zeros(node: ir.Node) -> np.ndarray[Any, Any]:
    """Zero points left out: for DequantizeLinear as many as scales, else one."""
    scale = node.inputs[1] if node.op_type == "DequantizeLinear" else None
    shape = scale.const_value.shape.numpy() if scale is not None and scale.const_value is not None else ()
    return np.zeros(shape, np.int8)


def _constant(top: ir.Graph, name: str, numbers: np.ndarray[Any, Any]) -> ir.Value:
    if name in top.initializers:
        return top.initializers[name]
    tensor = ir.tensor(numbers.astype(np.uint8), name=name)
    value = ir.Value(
        name=name, type=ir.TensorType(ir.DataType.UINT8), shape=ir.Shape(numbers.shape), const_value=tensor
    )
    top.initializers.add(value)
    return value


_WORKAROUNDS = {
    "cast-before-transpose": _cast_before_transpose,
    "exact-integer-products": _avoid_integer_products,
    "pad-kept-from-pool": _separate_pad_and_pool,
    "scale-kept-from-product": _separate_product_and_scale,
    "vector-before-matrix": _vector_on_the_other_side,
}
