"""GridSample (20), RoiAlign (16) and DFT (20): modes renamed, a default changed, an axis made an input."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from torchport.irtools import node_reader
from torchport.irtools.builder import Builder, Rules
from torchport.irtools.node_reader import Refusal

_OLD_NAMES = {"linear": "bilinear", "cubic": "bicubic"}
_NEW_NAMES = {old: new for new, old in _OLD_NAMES.items()}


def images_only(node: ir.Node, b: Builder) -> None:
    """Before 20 only images (rank 4), and the modes were called bilinear and bicubic."""
    if node_reader.rank(node_reader.required(node, 0)) != 4:
        raise Refusal("inputs other than images came in opset 20")
    _rename(node, "mode", _OLD_NAMES, "linear")


def any_rank(node: ir.Node, b: Builder) -> None:
    _rename(node, "mode", _NEW_NAMES, "bilinear")


def _rename(node: ir.Node, name: str, names: dict[str, str], default: str) -> None:
    mode = node_reader.text(node, name, default)
    node.attributes[name] = ir.AttrString(name, names.get(mode, mode))


def no_shift(node: ir.Node, b: Builder) -> None:
    """Before 16 the half-pixel shift, default since, was not made."""
    if node_reader.text(node, "coordinate_transformation_mode", "half_pixel") != "output_half_pixel":
        raise Refusal("coordinates by half_pixel came in opset 16")
    if node_reader.text(node, "mode", "avg") == "max":
        raise Refusal("mode 'max' was settled in opset 16")
    node.attributes.pop("coordinate_transformation_mode")


def say_no_shift(node: ir.Node, b: Builder) -> None:
    if node_reader.text(node, "mode", "avg") == "max":
        raise Refusal("mode 'max' was settled in opset 16")
    name = "coordinate_transformation_mode"
    node.attributes[name] = ir.AttrString(name, "output_half_pixel")


def axis_to_attribute(node: ir.Node, b: Builder) -> list[ir.Value]:
    x, length, given = node_reader.required(node, 0), node_reader.input_at(node, 1), node_reader.input_at(node, 2)
    axis = -2 if given is None else node_reader.constant_ints(given, "its axis")[0]
    axis = node_reader.non_negative([axis], node_reader.rank(x))[0]
    if axis == 0:
        raise Refusal("transforming the first axis came in opset 20")
    return [b.op("DFT", x, length, axis=axis, **_flags(node))]


def axis_to_input(node: ir.Node, b: Builder) -> list[ir.Value]:
    axis = b.constant(node_reader.integer(node, "axis", 1), np.int64)
    return [b.op("DFT", node_reader.required(node, 0), node_reader.input_at(node, 1), axis, **_flags(node))]


def _flags(node: ir.Node) -> dict[str, int]:
    return {name: node_reader.integer(node, name, 0) for name in ("inverse", "onesided")}


DOWN: Rules = {("GridSample", 20): images_only, ("RoiAlign", 16): no_shift, ("DFT", 20): axis_to_attribute}
UP: Rules = {("GridSample", 20): any_rank, ("RoiAlign", 16): say_no_shift, ("DFT", 20): axis_to_input}
