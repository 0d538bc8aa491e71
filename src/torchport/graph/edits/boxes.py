"""Non-maximum suppression behind a detector: boxes and scores become the detections that count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from torchport.errors import InputError
from torchport.graph.edits.image_steps import numbers, options
from torchport.irtools.builder import Builder

NAMES = ("detected_boxes", "detected_scores", "detected_classes", "detected_indices")
_FORMATS = ("xyxy", "xywh", "cxcywh")
_OPTIONS = {
    "boxes": None,
    "scores": None,
    "format": "xyxy",
    "iou": 0.5,
    "score": 0.25,
    "max_per_class": 100,
    "names": NAMES,
}


def read_options(value: Any) -> dict[str, Any]:
    """The options of the step, checked.

    ``boxes`` and ``scores`` name outputs; without them it is one output that has both. ``format`` is torchvision's:
    ``xyxy`` corners, ``xywh`` the top left corner and the size, ``cxcywh`` the center and the size.
    """
    given = options(
        value if isinstance(value, Mapping) else ({} if value in (None, True) else value), "iou", _OPTIONS, "nms"
    )
    if given["format"] not in _FORMATS:
        raise InputError(f"the step 'nms' has no format {given['format']!r}", next_step=", ".join(_FORMATS))
    for name in ("iou", "score"):
        if not 0 <= numbers(given[name], "nms")[0] <= 1:
            raise InputError(f"the option '{name}' of 'nms' is between 0 and 1, not {given[name]!r}")
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


def split_both(b: Builder, both: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Boxes and scores of one output: ``[N, 4 + classes, boxes]`` as YOLO gives it, or the last two the other way."""
    shape = None if both.shape is None else list(both.shape)
    if shape is None or len(shape) != 3 or not all(isinstance(d, int) for d in shape[1:]):
        raise InputError(
            f"output '{both.name}' is not seen to hold boxes and scores: {both.shape}",
            next_step="name two outputs: nms: {boxes: NAME, scores: NAME}",
        )
    sizes = [d for d in shape[1:] if isinstance(d, int)]
    rows = b.op("Transpose", both, perm=[0, 2, 1]) if sizes[0] < sizes[1] else both
    count = min(sizes)
    if count < 5:
        raise InputError(f"output '{both.name}' has {count} numbers a box, fewer than a box and a score")
    last = [b.op("Slice", rows, b.ints([start]), b.ints([end]), b.ints([2])) for start, end in ((0, 4), (4, count))]
    return last[0], last[1]


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
        raise InputError(f"scores are [N, boxes, classes], '{scores.name}' is {scores.shape}")
    count, (_, first, last) = boxes.shape[1], scores.shape
    already = isinstance(count, int) and last == count and first != count
    return scores if already else b.op("Transpose", scores, perm=[0, 2, 1])
