"""Steps behind a model: what each makes of an output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from torchport.errors import InputError
from torchport.graph.edits.boxes import split_both, suppressed
from torchport.graph.edits.image_steps import Images, options
from torchport.graph.edits.step_kinds import apply_step, chosen, layout_of
from torchport.irtools.builder import Builder

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
        boxes, scores = split_both(b, x)
    else:
        boxes, scores = x, chosen(list(model.graph.outputs), fields["scores"], "output")
        gone.append(scores)
    found = suppressed(b, boxes, scores, fields)
    return gone, [(str(n), v) for n, v in zip(fields["names"], found, strict=True)]
