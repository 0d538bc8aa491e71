"""Rules for Resize, Upsample, GridSample, RoiAlign and DFT."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from torchport.irtools import node_reader
from torchport.irtools.builder import Builder
from torchport.irtools.node_reader import Refusal
from torchport.opset.rules import Rules
from torchport.opset.rules.shapes import pick

# Resize, and Upsample before it.
#
#     7   Upsample, scales an attribute      13  roi and scales may be left out
#     9   scales an input                    18  axes, antialias, keep_aspect_ratio_policy
#     10  Resize, which may also shrink      19  half_pixel_symmetric
#     11  coordinate and rounding modes
#
# Before 11 there is one way to sample: x_original = x / scale, the floor of it for the nearest ("asymmetric" and
# "floor" since). When shrinking, the rounding was not written down and engines round up, so only scales of 1/2, 1/4..
# are carried over, where x / scale is whole and nothing is rounded.

_KEPT = (
    "coordinate_transformation_mode",
    "cubic_coeff_a",
    "exclude_outside",
    "extrapolation_value",
    "mode",
    "nearest_mode",
)
_ENLARGES = "torchport.opset.enlarges"  # Upsample never shrinks; Resize, which it becomes, may


def _kept(node: ir.Node) -> dict[str, object]:
    return {name: node_reader.attribute(node, name) for name in _KEPT}


def not_symmetric(node: ir.Node, b: Builder) -> None:
    if node_reader.text(node, "coordinate_transformation_mode", "half_pixel") == "half_pixel_symmetric":
        raise Refusal("half_pixel_symmetric came in opset 19")


def all_axes(node: ir.Node, b: Builder) -> list[ir.Value]:
    """Scales of some axes become scales of all, 1 for the others; sizes likewise, with the input's own."""
    if node_reader.integer(node, "antialias", 0):
        raise Refusal("antialias came in opset 18")
    x, roi, scales, sizes = (node_reader.input_at(node, i) for i in range(4))
    if sizes is not None and node_reader.text(node, "keep_aspect_ratio_policy", "stretch") != "stretch":
        raise Refusal("keep_aspect_ratio_policy came in opset 18")
    axes = node_reader.integers(node, "axes")
    if axes is not None and x is not None:
        axes = node_reader.non_negative(axes, node_reader.rank(x))
        scales = scales and _spread(b, scales, b.constant([1.0], np.float32), axes, node_reader.rank(x))
        sizes = sizes and _spread_sizes(b, sizes, x, axes)
        _refuse_region(node)
        roi = None
    return [b.op("Resize", x, roi, scales, sizes, **_kept(node))]


def _spread(b: Builder, values: ir.Value, rest: ir.Value, axes: list[int], rank: int) -> ir.Value:
    return pick(b, values, rest, [axes.index(i) if i in axes else len(axes) for i in range(rank)])


def _spread_sizes(b: Builder, sizes: ir.Value, x: ir.Value, axes: list[int]) -> ir.Value:
    known = node_reader.static_dims(x)
    own = b.ints(known) if known is not None else b.op("Shape", x)
    places = [axes.index(i) if i in axes else len(axes) + i for i in range(node_reader.rank(x))]
    return pick(b, sizes, own, places)


def _refuse_region(node: ir.Node) -> None:
    if node_reader.text(node, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        raise Refusal("a region of some axes came in opset 18")


def nothing_left_out(node: ir.Node, b: Builder) -> list[ir.Value]:
    """Before 13 empty tensors stand for what is left out."""
    x, roi, scales, sizes = (node_reader.input_at(node, i) for i in range(4))
    roi = b.constant([], np.float32) if roi is None else roi
    scales = b.constant([], np.float32) if scales is None else scales
    return [b.op("Resize", x, roi, scales, *([] if sizes is None else [sizes]), **_kept(node))]


def one_way_to_sample(node: ir.Node, b: Builder) -> list[ir.Value]:
    """Since 11 to before: asymmetric sampling, or any that picks the same elements."""
    x = node_reader.required(node, 0)
    scales = _known_scales(node, x)
    mode = node_reader.text(node, "mode", "nearest")
    if not (_is_asymmetric(node, mode) or (mode == "nearest" and _repeats(node, scales))):
        raise Refusal("its way to sample came in opset 11")
    if mode == "nearest" and not _rounds_nothing(scales):
        raise Refusal("rounding when shrinking was settled in opset 11")
    return [b.op("Resize", x, b.constant(scales, np.float32), mode=mode)]


def _is_asymmetric(node: ir.Node, mode: str) -> bool:
    if node_reader.text(node, "coordinate_transformation_mode", "half_pixel") != "asymmetric":
        return False
    return mode == "linear" or (mode == "nearest" and _rounding(node) == "floor")


def _rounding(node: ir.Node) -> str:
    return node_reader.text(node, "nearest_mode", "round_prefer_floor")


def _repeats(node: ir.Node, scales: list[float]) -> bool:
    """With a whole scale s the half-pixel coordinate of s·k + r is k + (r + 0.5)/s - 0.5, nearest to k."""
    way = node_reader.text(node, "coordinate_transformation_mode", "half_pixel")
    return (
        way == "half_pixel" and _rounding(node).startswith("round") and all(s >= 1 and s.is_integer() for s in scales)
    )


def _rounds_nothing(scales: list[float]) -> bool:
    return all(s >= 1 or math.frexp(s)[0] == 0.5 for s in scales)


def _known_scales(node: ir.Node, x: ir.Value) -> list[float]:
    scales, sizes = node_reader.constant(node_reader.input_at(node, 2)), node_reader.input_at(node, 3)
    if scales is not None and scales.size:
        return [float(s) for s in scales]
    if sizes is None:
        raise Refusal("its scales are computed at run time")
    wanted, have = node_reader.constant_ints(sizes, "the list of sizes"), node_reader.static_dims(x)
    if have is None or not all(have):
        raise Refusal("the sizes of its input are not known")
    found = [float(np.float32(w / h)) for w, h in zip(wanted, have, strict=True)]
    if any(math.floor(h * s) != w for h, s, w in zip(have, found, wanted, strict=True)):
        raise Refusal("its sizes are no scales")
    return found


def as_upsample(node: ir.Node, b: Builder) -> list[ir.Value]:
    x, scales = node_reader.required(node, 0), node_reader.required(node, 1)
    known = node_reader.constant(scales)
    if known is None or known.min(initial=1) < 1:
        raise Refusal("scales not known to be 1 or more came in opset 10")
    return [b.op("Upsample", x, scales, mode=node_reader.text(node, "mode", "nearest"))]


def scales_to_attribute(node: ir.Node, b: Builder) -> list[ir.Value]:
    known = node_reader.constant(node_reader.required(node, 1))
    if known is None:
        raise Refusal("its scales are computed at run time")
    mode = node_reader.text(node, "mode", "nearest")
    return [b.op("Upsample", node_reader.required(node, 0), mode=mode, scales=[float(s) for s in known])]


def scales_to_input(node: ir.Node, b: Builder) -> list[ir.Value]:
    scales = b.constant(node_reader.attribute(node, "scales"), np.float32)
    return [b.op("Upsample", node_reader.required(node, 0), scales, mode=node_reader.text(node, "mode", "nearest"))]


def upsample_as_resize(node: ir.Node, b: Builder) -> list[ir.Value]:
    y = b.op("Resize", *node.inputs, mode=node_reader.text(node, "mode", "nearest"))
    b.nodes[-1].meta[_ENLARGES] = True
    return [y]


def say_how_to_sample(node: ir.Node, b: Builder) -> list[ir.Value]:
    x, scales = node_reader.required(node, 0), node_reader.required(node, 1)
    mode, known = node_reader.text(node, "mode", "nearest"), node_reader.constant(scales)
    whole = known is not None and _rounds_nothing([float(s) for s in known])
    if mode == "nearest" and not whole and not node.meta.get(_ENLARGES):
        raise Refusal("rounding when shrinking was settled in opset 11")
    rounding = "floor" if mode == "nearest" else None
    given = {"coordinate_transformation_mode": "asymmetric", "mode": mode, "nearest_mode": rounding}
    return [b.op("Resize", x, b.constant([], np.float32), scales, **given)]


def no_dropped_mode(node: ir.Node, b: Builder) -> list[ir.Value] | None:
    """One mode went in 13; and since, scales are left out, not empty, when there are sizes."""
    if node_reader.text(node, "coordinate_transformation_mode", "half_pixel") == "tf_half_pixel_for_nn":
        raise Refusal("tf_half_pixel_for_nn went in opset 13")
    sizes = node_reader.input_at(node, 3)
    if sizes is None:
        return None
    return [b.op("Resize", node_reader.required(node, 0), node_reader.input_at(node, 1), None, sizes, **_kept(node))]


# GridSample (20), RoiAlign (16) and DFT (20): modes renamed, a default changed, an axis made an input.

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


DOWN: Rules = {
    ("Resize", 19): not_symmetric,
    ("Resize", 18): all_axes,
    ("Resize", 13): nothing_left_out,
    ("Resize", 11): one_way_to_sample,
    ("Resize", 10): as_upsample,
    ("Upsample", 9): scales_to_attribute,
    ("GridSample", 20): images_only,
    ("RoiAlign", 16): no_shift,
    ("DFT", 20): axis_to_attribute,
}
UP: Rules = {
    ("Upsample", 9): scales_to_input,
    ("Upsample", 10): upsample_as_resize,
    ("Resize", 11): say_how_to_sample,
    ("Resize", 13): no_dropped_mode,
    ("GridSample", 20): any_rank,
    ("RoiAlign", 16): say_no_shift,
    ("DFT", 20): axis_to_input,
}
