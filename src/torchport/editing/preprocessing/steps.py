"""Steps before and behind a model: scaling, layout, softmax, top-k, non-maximum suppression."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from torchport.editing.preprocessing.images import (
    Dims,
    Images,
    apply_step,
    chosen,
    crop_start,
    fitted,
    layout_of,
    letters,
    numbers,
    options,
    order_of,
    pad_sizes,
    pair,
    read_type,
    shorter_side,
)
from torchport.errors import InputError
from torchport.irtools.builder import Builder
from torchport.irtools.metadata import GEOMETRY

_FREES_SIZE = ("resize", "letterbox", "crop")


def side_names(model: ir.Model, old: ir.Value) -> tuple[str, str]:
    """Names for the sides of an image of any size, which no other input has."""
    others = {d.value for v in model.graph.inputs for d in v.shape or () if not isinstance(d, int)}
    taken = bool(others & {"height", "width"})
    return (f"{old.name}_height", f"{old.name}_width") if taken else ("height", "width")


def backwards(plan: Sequence[Step], after: list[Any], layout: str, sides: tuple[str, str]) -> tuple[Dims, str]:
    """The shape and layout in front of all steps, from those behind them."""
    dims: Dims = [d if isinstance(d, int) else d.value for d in after]
    for name, value in reversed(plan):
        if name == "transpose":
            order, said = order_of(value, layout)
            if len(order) != len(dims):
                raise InputError(
                    f"the step 'transpose' has {len(order)} axes, the input {len(dims)}",
                    next_step="give as many axes as the input has",
                )
            dims = [dims[order.index(n)] for n in range(len(dims))]
            layout = said or "".join(layout[order.index(n)] for n in range(len(dims)))
        elif name == "swap_channels":
            dims[layout.index("C")] = len(letters(value, name)[0])
        elif name in (*_FREES_SIZE, "pad") and {"H", "W"} <= set(layout):
            dims = _sized(name, value, dims, layout, sides)
    return dims, layout


def _sized(name: str, value: Any, dims: Dims, layout: str, sides: tuple[str, str]) -> Dims:
    found = list(dims)
    axes = [layout.index("H"), layout.index("W")]
    if name == "pad":
        left, top, right, bottom = pad_sizes(options(value, "sizes", {"sizes": None, "fill": 0}, "pad")["sizes"])
        added = (top + bottom, left + right)
    else:
        added = (0, 0)
    for axis, free, extra in zip(axes, sides, added, strict=True):
        size = found[axis]
        found[axis] = size - extra if name == "pad" and isinstance(size, int) else free
    return found


def narrowed(dims: Dims, shape: Sequence[int | str | None] | None, name: str) -> ir.Shape:
    """The shape that follows from the steps, or the narrower one that is given."""
    if shape is None:
        return ir.Shape(dims)
    fits = len(shape) == len(dims) and all(
        b == a or not isinstance(a, int) or not isinstance(b, int) for a, b in zip(dims, shape, strict=False)
    )
    if not fits:
        raise InputError(
            f"input '{name}' would be {dims} by its steps, not {list(shape)}", next_step="leave shape away"
        )
    return ir.Shape([b if b is not None else a for a, b in zip(dims, shape, strict=True)])


def dtype_before(plan: Sequence[Step], given: str | None, old: ir.Value) -> ir.DataType:
    """What is given; uint8 for an image that is cast first; the model's own otherwise."""
    assert old.dtype is not None
    if given is not None:
        return read_type(given)
    moves = ("transpose", "swap_channels", "crop", "pad")  # they keep the type
    first = next((name for name, _ in plan if name not in moves), "")
    return ir.DataType.UINT8 if first == "cast" else old.dtype


def before(b: Builder, plan: Sequence[Step], x: ir.Value, layout: str, old: ir.Value) -> ir.Value:
    """The steps one after the other, and a cast to what the model takes."""
    assert old.dtype is not None
    floats = old.dtype if old.dtype.is_floating_point() else ir.DataType.FLOAT
    images = Images(b, layout, floats)
    for name, value in plan:
        x = apply_step(images, name, value, x)
    return b.cast(x, old.dtype)


def check_fits(old: ir.Value, result: ir.Value) -> None:
    """What the steps give must be what the model takes."""
    if old.shape is None or result.shape is None:
        return
    both = list(zip(old.shape, result.shape, strict=False))
    if len(old.shape) != len(result.shape) or any(
        isinstance(a, int) and isinstance(b, int) and a != b for a, b in both
    ):
        raise InputError(
            f"the steps give {result.shape}, input '{old.name}' takes {old.shape}",
            next_step="resize or crop to the size the model takes, and transpose to its layout",
        )


# Steps behind a model: what each makes of an output.

Step = tuple[str, Any]
Result = tuple[str, ir.Value]  # an output's name and what it is


def behind(
    b: Builder, plan: Sequence[Step], old: ir.Value, model: ir.Model, fields: Mapping[str, Any]
) -> tuple[list[ir.Value], list[Result]]:
    """The outputs that go, and those that come in the place of the first of them."""
    assert old.shape is not None
    assert old.dtype is not None
    images = Images(b, layout_of(old.shape), old.dtype if old.dtype.is_floating_point() else ir.DataType.FLOAT)
    x = old
    for name, value in plan:
        if name == "topk":
            return [old], _topk(b, x, value, str(old.name))
        if name == "nms":
            return _nms(b, x, old, model, fields)
        x = _one_after(images, name, value, x)
    return [old], [(str(old.name), x)]


def _one_after(images: Images, name: str, value: Any, x: ir.Value) -> ir.Value:
    b = images.b
    if name == "sigmoid":
        return b.op("Sigmoid", images.floating(x))
    if name == "softmax":
        axis = _axis(x, options(value, "axis", {"axis": None}, name)["axis"], name)
        return _softmax(b, images.floating(x), axis)
    if name == "argmax":
        given = options(value, "axis", {"axis": None, "keepdims": False}, name)
        axis = _axis(x, given["axis"], name)
        return b.op("ArgMax", x, axis=axis, keepdims=int(bool(given["keepdims"])))
    return apply_step(images, name, value, x)


def _axis(x: ir.Value, given: Any, step: str) -> int:
    """The axis of the classes: the last, or the channels of an image."""
    rank = 0 if x.shape is None else len(x.shape)
    axis = (1 if rank == 4 else -1) if given is None else given
    if not isinstance(axis, int) or isinstance(axis, bool) or not -rank <= axis < rank:
        raise InputError(
            f"the step '{step}' has no axis {axis!r}: '{x.name}' is {x.shape}", next_step="count axes from 0"
        )
    return axis % rank


def _softmax(b: Builder, x: ir.Value, axis: int) -> ir.Value:
    """Before opset 13 Softmax takes all axes from `axis` on together: the axis is put last for it."""
    rank = 0 if x.shape is None else len(x.shape)
    if b.opset >= 13 or axis == rank - 1:
        return b.op("Softmax", x, axis=axis)
    order = [*(n for n in range(rank) if n != axis), axis]
    last = b.op("Softmax", b.op("Transpose", x, perm=order), axis=rank - 1)
    return b.op("Transpose", last, perm=[order.index(n) for n in range(rank)])


def _topk(b: Builder, x: ir.Value, value: Any, name: str) -> list[Result]:
    given = options(value, "k", {"k": None, "axis": None, "names": [f"{name}_values", f"{name}_indices"]}, "topk")
    axis, k = _axis(x, given["axis"], "topk"), given["k"]
    size = x.shape[axis] if x.shape is not None else None
    if not isinstance(k, int) or isinstance(k, bool) or k < 1 or (isinstance(size, int) and k > size):
        raise InputError(f"the step 'topk' takes how many of {size or 'them'}, not {k!r}", next_step="such as topk: 5")
    if not isinstance(given["names"], Sequence) or len(set(given["names"])) != 2:
        raise InputError("the step 'topk' takes two names, for the values and the indices")
    found = b.ops("TopK", [x, b.ints([k])], 2, axis=axis)
    return [(str(n), v) for n, v in zip(given["names"], found, strict=True)]


def _nms(
    b: Builder, x: ir.Value, old: ir.Value, model: ir.Model, fields: Mapping[str, Any]
) -> tuple[list[ir.Value], list[Result]]:
    gone = [old]
    if fields["scores"] is None:
        boxes, scores = split_both(b, x, fields)
    else:
        boxes, scores = x, chosen(list(model.graph.outputs), fields["scores"], "output")
        gone.append(scores)
    found = suppressed(b, boxes, scores, fields)
    image = _geometry_of(model, fields["image"])
    if image is not None:
        found[0] = _restored(b, found[0], *image)
    return gone, [(str(n), v) for n, v in zip(fields["names"], found, strict=True)]


# Non-maximum suppression behind a detector: boxes and scores become the detections that count.

NAMES = ("detected_boxes", "detected_scores", "detected_classes", "detected_indices")
_FORMATS = ("xyxy", "xywh", "cxcywh")
_OPTIONS = {
    "boxes": None,
    "scores": None,
    "format": None,
    "objectness": False,
    "classes": None,
    "image": None,
    "iou": 0.5,
    "score": 0.25,
    "max_per_class": 100,
    "names": NAMES,
}


def read_options(value: Any) -> dict[str, Any]:
    """The options of the step, checked.

    ``boxes`` and ``scores`` name outputs; without them it is one output that has both. ``format`` is torchvision's:
    ``xyxy`` corners, ``xywh`` the top left corner and the size, ``cxcywh`` the center and the size; in one output,
    as YOLO's, the last is the default. There, ``objectness`` says that a score of the box itself comes before those of
    its classes, and ``classes`` how many these are, where other numbers follow.
    """
    given = options(
        value if isinstance(value, Mapping) else ({} if value in (None, True) else value), "iou", _OPTIONS, "nms"
    )
    given["format"] = given["format"] or ("cxcywh" if given["boxes"] is None else "xyxy")
    if given["format"] not in _FORMATS:
        raise InputError(f"the step 'nms' has no format {given['format']!r}", next_step=", ".join(_FORMATS))
    for name in ("iou", "score"):
        if not 0 <= numbers(given[name], "nms")[0] <= 1:
            raise InputError(f"the option '{name}' of 'nms' is between 0 and 1, not {given[name]!r}")
    classes = given["classes"]
    if classes is not None and (not isinstance(classes, int) or isinstance(classes, bool) or classes < 1):
        raise InputError(f"the option 'classes' of 'nms' is a number from 1 on, not {classes!r}")
    most = given["max_per_class"]
    if not isinstance(most, int) or isinstance(most, bool) or most < 1:
        raise InputError(f"the option 'max_per_class' of 'nms' is a number from 1 on, not {most!r}")
    if len(given["names"]) != len(NAMES):
        raise InputError(f"the option 'names' of 'nms' takes {len(NAMES)} names", next_step=f"for {', '.join(NAMES)}")
    if (given["boxes"] is None) != (given["scores"] is None):
        raise InputError(
            "the step 'nms' takes both 'boxes' and 'scores', or neither", next_step="name the other output"
        )
    return given


def split_both(b: Builder, both: ir.Value, given: Mapping[str, Any]) -> tuple[ir.Value, ir.Value]:
    """Boxes and scores of one output: ``[N, 4 + classes, boxes]`` as YOLO gives it, or the last two the other way.

    The number of boxes may be dynamic: then the axis of a fixed size has the numbers of a box.
    """
    shape = None if both.shape is None else list(both.shape)
    sizes = {axis: d for axis, d in enumerate(shape or ()) if axis and isinstance(d, int)}
    if shape is None or len(shape) != 3 or not sizes:
        raise InputError(
            f"output '{both.name}' is not seen to hold boxes and scores: {both.shape}",
            next_step="name two outputs, nms: {boxes: NAME, scores: NAME}; or state its shape: --set-shape",
        )
    axis = min(sizes, key=lambda n: (sizes[n], -n))
    rows = b.op("Transpose", both, perm=[0, 2, 1]) if axis == 1 else both
    first = 5 if given["objectness"] else 4
    count = sizes[axis] if given["classes"] is None else first + given["classes"]
    if not first < count <= sizes[axis]:
        raise InputError(
            f"output '{both.name}' has {sizes[axis]} numbers a box, fewer than a box and its scores",
            next_step="name the output that holds 4 coordinates and the scores of each box",
        )

    def part(start: int, end: int) -> ir.Value:
        return b.op("Slice", rows, b.ints([start]), b.ints([end]), b.ints([2]))

    scores = part(first, count)
    return part(0, 4), b.op("Mul", scores, part(4, 5)) if given["objectness"] else scores


def suppressed(b: Builder, boxes: ir.Value, scores: ir.Value, given: Mapping[str, Any]) -> list[ir.Value]:
    """The detections: corners ``[K, 4]``, scores ``[K]``, classes ``[K]``, and (batch, class, box) ``[K, 3]``."""
    corners = _corners(b, b.cast(boxes, ir.DataType.FLOAT), given["format"])
    by_class = _by_class(b, b.cast(scores, ir.DataType.FLOAT), boxes)
    limits = [b.constant([numbers(given[name], "nms")[0]], np.float32) for name in ("iou", "score")]
    chosen = b.op("NonMaxSuppression", corners, by_class, b.ints([given["max_per_class"]]), *limits)
    batch, kind, index = (_column(b, chosen, n) for n in range(3))
    return [
        b.op("GatherND", corners, b.op("Concat", batch, index, axis=1)),
        b.op("GatherND", by_class, chosen),
        b.squeeze(kind, [1]),
        chosen,
    ]


# Boxes in coordinates of the image as it was given, before steps in front of the model changed its size.


def remember_geometry(model: ir.Model, name: str, layout: str, plan: Sequence[Step]) -> None:
    """Write down which steps change the size of an image, for boxes that are found in it."""
    steps = [[step, value] for step, value in plan if step in (*_FREES_SIZE, "pad")]
    if not steps or not {"H", "W"} <= set(layout):
        return
    known = geometry(model)
    after = known.get(name, {}).get("steps", [])
    known[name] = {"layout": layout, "steps": [*steps, *after]}
    model.metadata_props[GEOMETRY] = json.dumps(known, sort_keys=True)


def geometry(model: ir.Model) -> dict[str, Any]:
    """Return the layout and the steps of each image, by input."""
    try:
        found = json.loads(model.metadata_props.get(GEOMETRY, "{}"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _geometry_of(model: ir.Model, wanted: Any) -> tuple[ir.Value, str, list[Step]] | None:
    """Return the image that boxes belong to, with its layout and steps; None if its size is not changed."""
    inputs = {str(v.name): v for v in model.graph.inputs}
    known = {name: entry for name, entry in geometry(model).items() if name in inputs}
    if wanted is False or (wanted is None and not known):
        return None
    if wanted in (None, True) and len(known) == 1:
        wanted = next(iter(known))
    if wanted not in known:
        raise InputError(
            f"no steps in front of the model change the size of an image '{wanted}'",
            next_step=f"the option 'image' of 'nms' is one of {', '.join(known) or 'none here'}, or false",
        )
    entry = known[str(wanted)]
    return inputs[str(wanted)], entry["layout"], [(name, value) for name, value in entry["steps"]]


def _restored(b: Builder, corners: ir.Value, image: ir.Value, layout: str, plan: Sequence[Step]) -> ir.Value:
    """Undo, for corners ``[K, 4]``, what the steps did: each moves and scales height and width."""
    whole = b.op("Gather", b.op("Shape", image), b.ints([layout.index("H"), layout.index("W")]), axis=0)
    sides, now = b.cast(whole, ir.DataType.FLOAT), whole
    scale, offset = b.constant([1.0, 1.0], np.float32), b.constant([0.0, 0.0], np.float32)
    for name, value in plan:
        now, factor, shift = _moved(b, name, value, now)
        scale = b.op("Mul", scale, factor)
        offset = b.op("Add", b.op("Mul", offset, factor), shift)
    scale, offset, most = (b.op("Gather", v, b.ints([1, 0, 1, 0]), axis=0) for v in (scale, offset, sides))
    found = b.op("Div", b.op("Sub", corners, offset), scale)
    return b.op("Min", b.op("Max", found, b.constant([0.0], np.float32)), most)


def _moved(b: Builder, name: str, value: Any, now: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Return the sides behind a step, and the factor and shift of a place in the image."""
    if name == "pad":
        left, top, right, bottom = pad_sizes(options(value, "sizes", {"sizes": None, "fill": 0}, "pad")["sizes"])
        more = b.ints([top + bottom, left + right])
        shift = b.constant([float(top), float(left)], np.float32)
        return b.op("Add", now, more), b.constant([1.0, 1.0], np.float32), shift
    floats = b.cast(now, ir.DataType.FLOAT)
    if name == "crop":
        size = pair(value, name)
        start = b.cast(crop_start(b, now, size), ir.DataType.FLOAT)
        kept = b.op("Min", floats, b.constant(size, np.float32))
        return b.cast(kept, ir.DataType.INT64), b.constant([1.0, 1.0], np.float32), b.op("Neg", start)
    target = value.get("size") if isinstance(value, Mapping) else value
    if name == "letterbox":
        inner, before, _ = fitted(b, now, pair(target, name))
        behind, shift = b.ints(pair(target, name)), b.cast(before, ir.DataType.FLOAT)
    else:
        inner = shorter_side(b, now, target) if isinstance(target, int) else b.ints(pair(target, name))
        behind, shift = inner, b.constant([0.0, 0.0], np.float32)
    return behind, b.op("Div", b.cast(inner, ir.DataType.FLOAT), floats), shift


def _column(b: Builder, x: ir.Value, n: int) -> ir.Value:
    return b.op("Slice", x, b.ints([n]), b.ints([n + 1]), b.ints([1]))


def _corners(b: Builder, boxes: ir.Value, kind: str) -> ir.Value:
    if kind == "xyxy":
        return boxes
    place = b.op("Slice", boxes, b.ints([0]), b.ints([2]), b.ints([2]))
    size = b.op("Slice", boxes, b.ints([2]), b.ints([4]), b.ints([2]))
    if kind == "cxcywh":
        place = b.op("Sub", place, b.op("Div", size, b.constant(2.0, np.float32)))
    return b.op("Concat", place, b.op("Add", place, size), axis=2)


def _by_class(b: Builder, scores: ir.Value, boxes: ir.Value) -> ir.Value:
    """Scores as ``[N, classes, boxes]``. Where the shapes do not tell, the classes are taken to be last."""
    if scores.shape is None or boxes.shape is None or len(boxes.shape) != 3 or boxes.shape[2] not in (4,):
        raise InputError(
            f"boxes are [N, boxes, 4], '{boxes.name}' is {boxes.shape}",
            next_step="transpose them first, or name others",
        )
    if len(scores.shape) == 2:
        return b.unsqueeze(scores, [1])
    if len(scores.shape) != 3:
        raise InputError(
            f"scores are [N, boxes, classes], '{scores.name}' is {scores.shape}",
            next_step="transpose the output before, or name the output that holds the scores",
        )
    count, (_, first, last) = boxes.shape[1], scores.shape
    already = isinstance(count, int) and last == count and first != count
    return scores if already else b.op("Transpose", scores, perm=[0, 2, 1])
