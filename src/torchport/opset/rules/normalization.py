"""Rules for normalizations, Dropout and Attention."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from torchport.irtools import node_reader
from torchport.irtools.builder import Builder
from torchport.irtools.node_reader import Refusal
from torchport.opset.rules import Rules

# LayerNormalization (17), GroupNormalization (21) and RMSNormalization (23) in primitive operators.
#
# onnx gives a body for LayerNormalization, but takes the variance as E[x²] - E[x]², which loses all digits when the
# mean is large. Here it is E[(x - E[x])²], as PyTorch and ONNX Runtime have it.


def layer_normalization(node: ir.Node, b: Builder) -> list[ir.Value | None]:
    """y = (x - m) / sqrt(v + epsilon) · scale + bias, with m and v over all axes from ``axis`` on."""
    x, scale, bias = node_reader.required(node, 0), node_reader.required(node, 1), node_reader.input_at(node, 2)
    axis = node_reader.integer(node, "axis", -1)
    axes = list(range(axis, 0)) if axis < 0 else list(range(axis, node_reader.rank(x)))
    wide = _stashed(node, x, b)
    mean, deviation, centered = _moments(node, wide, axes, b)
    y = b.op("Mul", b.cast(b.op("Div", centered, deviation), node_reader.dtype(x)), scale)
    y = y if bias is None else b.op("Add", y, bias)
    inverse = b.op("Reciprocal", deviation) if node_reader.is_used(node, 2) else None
    return [y, *(_as_declared(node, i, v, b) for i, v in ((1, mean), (2, inverse)))][: len(node.outputs)]


def group_normalization(node: ir.Node, b: Builder) -> list[ir.Value]:
    """As above over each group: x is seen as (N, groups, rest), the moments are over the rest."""
    x, scale, bias = (node_reader.required(node, i) for i in range(3))
    rank, groups = node_reader.rank(x), node_reader.integer(node, "num_groups", 1)
    wide = _stashed(node, x, b)
    _, deviation, centered = _moments(node, b.op("Reshape", wide, b.ints([0, groups, -1])), [2], b)
    normal = b.op("Reshape", b.op("Div", centered, deviation), b.op("Shape", x))
    per_channel = list(range(1, rank - 1))
    factor = b.unsqueeze(scale, per_channel) if per_channel else scale
    shift = b.unsqueeze(bias, per_channel) if per_channel else bias
    return [b.op("Add", b.op("Mul", b.cast(normal, node_reader.dtype(x)), factor), shift)]


def rms_normalization(node: ir.Node, b: Builder) -> list[ir.Value]:
    """y = x / sqrt(E[x²] + epsilon) · scale, with the mean over all axes from ``axis`` on."""
    x, scale = node_reader.required(node, 0), node_reader.required(node, 1)
    axis = node_reader.integer(node, "axis", -1)
    axes = list(range(axis, 0)) if axis < 0 else list(range(axis, node_reader.rank(x)))
    wide = _stashed(node, x, b)
    mean = b.reduce("ReduceMean", b.op("Mul", wide, wide), axes)
    size = b.op("Sqrt", b.op("Add", mean, b.scalar_like(node_reader.real(node, "epsilon", 1e-5), wide)))
    return [b.op("Mul", b.cast(b.op("Div", wide, size), node_reader.dtype(x)), scale)]


def _stashed(node: ir.Node, x: ir.Value, b: Builder) -> ir.Value:
    """x in the precision the moments are taken in; float64 is not narrowed, as engines do not narrow it either."""
    if node_reader.dtype(x) == ir.DataType.DOUBLE:
        return x
    return b.cast(x, ir.DataType(node_reader.integer(node, "stash_type", int(ir.DataType.FLOAT))))


def _moments(node: ir.Node, x: ir.Value, axes: list[int], b: Builder) -> tuple[ir.Value, ir.Value, ir.Value]:
    mean = b.reduce("ReduceMean", x, axes)
    centered = b.op("Sub", x, mean)
    variance = b.reduce("ReduceMean", b.op("Mul", centered, centered), axes)
    epsilon = b.scalar_like(node_reader.real(node, "epsilon", 1e-5), x)
    return mean, b.op("Sqrt", b.op("Add", variance, epsilon)), centered


def _as_declared(node: ir.Node, index: int, value: ir.Value | None, b: Builder) -> ir.Value | None:
    if value is None or not node_reader.is_used(node, index):
        return None
    return b.cast(value, node_reader.dtype(node.outputs[index]))


def scale_for_each_channel(node: ir.Node, b: Builder) -> list[ir.Value]:
    """In 18 scale and bias were for each group; since 21 for each channel, so each is repeated C / groups times."""
    x, scale, bias = (node_reader.required(node, i) for i in range(3))
    groups, channels = node_reader.integer(node, "num_groups", 1), node_reader.static_dim(x, 1)
    if channels is None:
        raise Refusal("the number of channels is not known")
    given = {"epsilon": node_reader.real(node, "epsilon", 1e-5), "num_groups": groups}
    both = [_repeated(value, channels // groups, b) for value in (scale, bias)]
    return [b.op("GroupNormalization", x, *both, **given)]


def _repeated(value: ir.Value, times: int, b: Builder) -> ir.Value:
    wide = b.op("Expand", b.op("Reshape", value, b.ints([-1, 1])), b.ints([1, times]))
    return b.op("Reshape", wide, b.ints([-1]))


# BatchNormalization: ``spatial`` went in 9, ``training_mode`` came in 14. Inference means the same throughout.


def inference_only(node: ir.Node, b: Builder) -> None:
    if node_reader.integer(node, "training_mode", 0):
        raise Refusal("training_mode=1 came in opset 14")
    node.attributes.pop("training_mode", None)


def spatial_only(node: ir.Node, b: Builder) -> None:
    if not node_reader.integer(node, "spatial", 1):
        raise Refusal("spatial=0 went in opset 9")
    node.attributes.pop("spatial", None)


def first_output_only(node: ir.Node, b: Builder) -> None:
    if any(node_reader.is_used(node, i) for i in range(1, len(node.outputs))):
        raise Refusal("its training outputs changed in opset 14")


# Dropout: the mask turned boolean in 10, training explicit in 12. In inference it is Identity.


def inference_is_identity(node: ir.Node, b: Builder) -> list[ir.Value]:
    mode = node_reader.input_at(node, 2)
    training = node_reader.constant(mode) if mode is not None else np.zeros((), dtype=bool)
    if training is None or training.any():
        raise Refusal("it drops in training mode, which is explicit only since opset 12")
    if node_reader.is_used(node, 1):
        raise Refusal("its mask is used")
    return [b.op("Identity", node_reader.required(node, 0))]


def ratio_to_input(node: ir.Node, b: Builder) -> list[ir.Value]:
    ratio = b.constant(node_reader.real(node, "ratio", 0.5), np.float32)
    return list(b.ops("Dropout", [node_reader.required(node, 0), ratio], len(node.outputs)))


def dropout_without_mask(node: ir.Node, b: Builder) -> list[ir.Value]:
    """The mask changed its dtype in 10, so it must not be read; then it need not be there either."""
    if node_reader.is_used(node, 1):
        raise Refusal("its mask, whose dtype changed in opset 10, is used")
    return [b.op("Dropout", node_reader.required(node, 0), ratio=node_reader.real(node, "ratio", 0.5))]


# Attention: since 24 a mask may be shorter than the keys, which 23 does not know; such a node is taken apart.


def attention_without_long_mask(node: ir.Node, b: Builder) -> None:
    if node_reader.input_at(node, 3) is not None:
        raise Refusal("a mask that may be shorter than the keys came in opset 24")


DOWN: Rules = {
    ("LayerNormalization", 17): layer_normalization,
    ("GroupNormalization", 21): group_normalization,
    ("RMSNormalization", 23): rms_normalization,
    ("BatchNormalization", 14): inference_only,
    ("Dropout", 12): inference_is_identity,
    ("Dropout", 10): dropout_without_mask,
    ("Attention", 24): attention_without_long_mask,
}
UP: Rules = {
    ("GroupNormalization", 21): scale_for_each_channel,
    ("BatchNormalization", 9): spatial_only,
    ("BatchNormalization", 14): first_output_only,
    ("Dropout", 10): dropout_without_mask,
    ("Dropout", 12): ratio_to_input,
}
