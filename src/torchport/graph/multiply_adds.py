"""How many multiply-adds a node takes: of convolutions, matrix products, recurrent layers and attention.

Everything else (activations, norms, pooling, moving data) counts as none, as is usual.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from torchport.irtools.polynomials import Size, product
from torchport.irtools.shapes import Shape, Shapes, attribute

_Known = tuple[Size, ...]


class UnknownShapeError(Exception):
    """A shape that is needed is not known."""


def multiply_adds(node: ir.Node, shapes: Shapes) -> Size:
    """The count of one node; bodies of loops and branches are not in it.

    Raises:
        UnknownShapeError: a shape it depends on is not known.
    """
    domain = "" if node.domain == "ai.onnx" else node.domain
    rule = _RULES.get(node.op_type) if domain == "" else _MICROSOFT.get(node.op_type)
    rule = rule if domain in ("", "com.microsoft") else None
    try:
        return 0 if rule is None else rule(node, shapes)
    except (IndexError, ZeroDivisionError) as error:  # a node that its schema does not allow
        raise UnknownShapeError from error


def _full(shape: Shape | None) -> _Known:
    if shape is None or None in shape:
        raise UnknownShapeError
    return tuple(d for d in shape if d is not None)


def _input(node: ir.Node, index: int, shapes: Shapes) -> _Known:
    return _full(shapes.of(node.inputs[index]))


def _output(node: ir.Node, shapes: Shapes) -> Size:
    return product(_full(shapes.of(node.outputs[0])))


def _convolution(weight: int) -> Callable[[ir.Node, Shapes], Size]:
    """Each number that comes out takes the kernel times the channels of its group."""
    return lambda node, shapes: _output(node, shapes) * product(_input(node, weight, shapes)[1:])


def _transposed(node: ir.Node, shapes: Shapes) -> Size:
    """Each number that goes in is spread by the kernel over the channels of its group."""
    return product(_input(node, 0, shapes)) * product(_input(node, 1, shapes)[1:])


def _gemm(node: ir.Node, shapes: Shapes) -> Size:
    return _output(node, shapes) * _input(node, 0, shapes)[-2 if attribute(node, "transA", 0) else -1]


def _matmul(node: ir.Node, shapes: Shapes) -> Size:
    return _output(node, shapes) * _input(node, 0, shapes)[-1]


def _matmul_bits(node: ir.Node, shapes: Shapes) -> Size:
    rows = product(_input(node, 0, shapes)[:-1])
    return rows * int(attribute(node, "K", 0)) * int(attribute(node, "N", 0))


def _recurrent(node: ir.Node, shapes: Shapes) -> Size:
    """Each step of each sequence takes every weight once."""
    steps, batch, _ = _input(node, 0, shapes)
    return steps * batch * (product(_input(node, 1, shapes)) + product(_input(node, 2, shapes)))


def _attention(node: ir.Node, shapes: Shapes) -> Size:
    """Queries by keys, then scores by values; a batch of heads each."""
    query, key, value = (_input(node, n, shapes) for n in range(3))
    if len(query) == 4:
        batch, heads, asked, width = query
        value_width = value[3]
    else:
        batch, asked, hidden = query
        heads = int(attribute(node, "q_num_heads", 0))
        width, value_width = hidden // heads, value[2] // int(attribute(node, "kv_num_heads", 0))
    held = key[2] if len(key) == 4 else key[1]
    if len(node.inputs) > 4 and node.inputs[4] is not None:
        held = held + _input(node, 4, shapes)[2]
    return batch * heads * asked * held * (width + value_width)


def _einsum(node: ir.Node, shapes: Shapes) -> Size:
    """Every combination of the letters once, for each operand but the first."""
    left = attribute(node, "equation", "").replace(" ", "").partition("->")[0].split(",")
    if len(left) < 2 or "..." in "".join(left):
        return 0 if len(left) < 2 else _ellipsis(node, left, shapes)
    sizes = {c: d for n, term in enumerate(left) for c, d in zip(term, _input(node, n, shapes), strict=False)}
    return product(sizes.values()) * (len(left) - 1)


def _ellipsis(node: ir.Node, left: list[str], shapes: Shapes) -> Size:
    """What comes out, times the letters of the first operand that do not."""
    right = attribute(node, "equation", "").replace(" ", "").partition("->")[2]
    before, _, after = left[0].partition("...")
    first = _input(node, 0, shapes)
    sizes = [*zip(before, first, strict=False), *zip(after[::-1], first[::-1], strict=False)]
    return _output(node, shapes) * product(d for c, d in sizes if c not in right) * (len(left) - 1)


def _attention_and_projection(node: ir.Node, shapes: Shapes) -> Size:
    """ONNX Runtime's own: three projections of one input, then attention to itself."""
    batch, length, hidden = _input(node, 0, shapes)
    projected = _input(node, 1, shapes)[1]
    return batch * length * hidden * projected + 2 * batch * length * length * (projected // 3)


_PRODUCTS: dict[str, Callable[[ir.Node, Shapes], Size]] = {
    **dict.fromkeys(("Conv", "ConvInteger", "DeformConv", "FusedConv"), _convolution(1)),
    "QLinearConv": _convolution(3),
    **dict.fromkeys(("Gemm", "FusedGemm", "FusedMatMul"), _gemm),
    **dict.fromkeys(("MatMul", "MatMulInteger", "QLinearMatMul"), _matmul),
}
_RULES = {
    **_PRODUCTS,
    "ConvTranspose": _transposed,
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
    "Attention": _attention,
    "Einsum": _einsum,
}
_MICROSOFT = {**_PRODUCTS, "MatMulNBits": _matmul_bits, "Attention": _attention_and_projection}
