"""Fold into a model what is done to its inputs before it, and to its outputs after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from torchport.editing.preprocessing.images import ARITHMETIC, chosen, layout_of
from torchport.editing.preprocessing.steps import (
    Result,
    Step,
    backwards,
    before,
    behind,
    check_fits,
    dtype_before,
    narrowed,
    read_options,
    remember_geometry,
    side_names,
)
from torchport.editing.selection import Tensor, tensor_name
from torchport.editing.transaction import in_place, unproves
from torchport.errors import InputError, did_you_mean
from torchport.irtools.builder import Builder
from torchport.irtools.dims import plain_dims
from torchport.irtools.inference import infer_missing
from torchport.irtools.names import FreshNames

_OLDEST = 11
_BEFORE = ("cast", *ARITHMETIC, "normalize", "resize", "letterbox", "crop", "pad", "swap_channels", "transpose")
_AFTER = ("softmax", "sigmoid", "argmax", "topk", "nms", "cast", *ARITHMETIC, "transpose")


@in_place
@unproves
def preprocess(
    model: ir.Model,
    steps: Sequence[Any],
    *,
    input: Tensor | None = None,
    dtype: str | ir.DataType | None = None,
    shape: Sequence[int | str | ir.SymbolicDim | None] | ir.Shape | None = None,
) -> int:
    """Put steps in front of an input, in the order in which data flows; the input keeps its name.

    | step | what |
    |---|---|
    | ``cast: float32`` | to that type; where it comes first, the new input is uint8 |
    | ``scale: 255`` | divide, so that 255 becomes 1; ``multiply``, ``divide``, ``add``, ``subtract`` say it plainly |
    | ``normalize: imagenet`` | or ``{mean: [...], std: [...]}``, one number for each channel |
    | ``resize: [h, w]`` | ``{size:, mode: linear/nearest/cubic, antialias: true}``; one number is the shorter side |
    | ``letterbox: [h, w]`` | the ratio kept, the rest filled with a color of the given image: ``{size:, fill: 114}`` |
    | ``crop: [h, w]`` | the middle |
    | ``pad: [left, top, right, bottom]`` | ``{sizes:, fill: 0}`` |
    | ``swap_channels: BGR->RGB`` | also ``RGBA->RGB`` |
    | ``transpose: NHWC->NCHW`` | or an order of axes |

    Args:
        model: changed in place; as it was if a step is refused.
        steps: mappings of one step each, or names.
        input: which one or its name, where there are several.
        dtype: of the new input, where the steps do not say it.
        shape: of the new input, where it is to be narrower than what follows from the steps.

    Returns:
        How many nodes were added.

    Example:
        >>> steps = [{"cast": "float32"}, {"scale": 255}, {"resize": [224, 224]}, {"normalize": "imagenet"}]
        >>> tp.graph.preprocess(model, [*steps, {"transpose": "NHWC->NCHW"}])
    """
    _check_opset(model)
    name = None if input is None else tensor_name(model, input)
    old = chosen([v for v in model.graph.inputs if not v.is_initializer()], name, "input")
    plan = _read(steps, _BEFORE)
    if old.is_graph_output() or old.shape is None or old.dtype is None:
        raise InputError(
            f"input '{old.name}' cannot be put behind steps: it is an output too, or has no type or shape",
            next_step="`torchport inspect` shows types and shapes; `edit` can set a shape",
        )
    dims, layout = backwards(plan, list(old.shape), layout_of(old.shape), side_names(model, old))
    new = ir.Value(
        name=old.name,
        shape=narrowed(dims, None if shape is None else plain_dims(shape), str(old.name)),
        type=ir.TensorType(dtype_before(plan, dtype.name if isinstance(dtype, ir.DataType) else dtype, old)),
    )
    new.doc_string = old.doc_string
    base = ir.Node("", "Preprocess", [], num_outputs=1, name=f"{old.name}_preprocess")
    base.outputs[0].name = f"{old.name}_preprocess"
    with Builder(base, model.opset_imports[""], FreshNames(model).fresh) as b:
        result = before(b, plan, new, layout, old)
        check_fits(old, result)
    _put_before(model, old, new, result, b.nodes)
    remember_geometry(model, str(new.name), layout, plan)
    return len(b.nodes)


@in_place
@unproves
def postprocess(model: ir.Model, steps: Sequence[Any], *, output: Tensor | None = None) -> int:
    """Put steps behind an output; the result has the output's name.

    | step | what |
    |---|---|
    | ``softmax``, ``argmax`` | ``{axis: 1}``; without it the last axis, for images (four axes) the channels, axis 1 |
    | ``topk: 5`` | ``{k:, axis:, names: [values, indices]}``: two outputs, ``NAME_values`` and ``NAME_indices`` |
    | ``sigmoid`` | |
    | ``nms`` | ``{boxes:, scores:, format: xyxy/xywh/cxcywh, iou:, score:, max_per_class:, names:}`` |
    | ``cast``, ``scale``, ``multiply``, ``divide``, ``add``, ``subtract``, ``transpose`` | as before a model |

    `topk` and `nms` come last. `nms` gives the boxes of all images, their corners, in ``detected_boxes``, with
    ``detected_scores``, ``detected_classes`` and ``detected_indices``: image, class and box of each. Where `preprocess`
    has put a resize, letterbox, crop or pad in front of the model, the corners are those in the image before it.

    Args:
        model: changed in place; as it was if a step is refused.
        steps: mappings of one step each, or names.
        output: which one or its name, where there are several.

    Returns:
        How many nodes were added.

    Example:
        >>> tp.graph.postprocess(model, ["softmax", {"topk": 5}])
    """
    _check_opset(model)
    plan = _read(steps, _AFTER)
    many = [n for n, (name, _) in enumerate(plan) if name in ("topk", "nms")]
    if many and many[0] != len(plan) - 1:
        raise InputError(
            f"the step '{plan[many[0]][0]}' gives several outputs and must come last",
            next_step="move that step to the end",
        )
    _know_types(model)
    fields = read_options(plan[-1][1]) if plan[-1][0] == "nms" else {}
    named = tensor_name(model, output) if output is not None else fields.get("boxes")
    old = chosen(list(model.graph.outputs), named, "output")
    _check_can_follow(old)
    base = ir.Node("", "Postprocess", [], num_outputs=1, name=f"{old.name}_postprocess")
    base.outputs[0].name = f"{old.name}_postprocess"
    with Builder(base, model.opset_imports[""], FreshNames(model).fresh) as b:
        gone, results = behind(b, plan, old, model, fields)
        _check_names(model, gone, results)
    before = len(model.graph)
    _put_after(model, gone, results, b.nodes)
    return len(model.graph) - before


# --- reading ----------------------------------------------------------------------------------------------------------


def _read(steps: Any, known: Sequence[str]) -> list[Step]:
    if isinstance(steps, (str, Mapping)) or not isinstance(steps, Sequence) or not steps:
        raise InputError(f"steps are a list, not {steps!r}", next_step="such as [{scale: 255}, {normalize: imagenet}]")
    return [_read_one(step, known) for step in steps]


def _read_one(step: Any, known: Sequence[str]) -> Step:
    if isinstance(step, Mapping) and len(step) == 1:
        name, value = next(iter(step.items()))
    elif isinstance(step, str):
        name, value = step, None
    else:
        raise InputError(
            f"a step is a name, or a name and a value, not {step!r}", next_step="one mapping for each step"
        )
    if name not in known:
        hint = did_you_mean(str(name), known, f"there are {', '.join(known)}")
        raise InputError(f"there is no step '{name}' here", next_step=hint)
    return str(name), value


def _check_opset(model: ir.Model) -> None:
    version = model.opset_imports.get("", 0)
    if version < _OLDEST:
        raise InputError(
            f"steps need opset {_OLDEST}, the model has {version}",
            next_step="raise it first: `torchport edit --set-opset 18`",
        )


# --- before -----------------------------------------------------------------------------------------------------------


def _put_before(model: ir.Model, old: ir.Value, new: ir.Value, result: ir.Value, nodes: list[ir.Node]) -> None:
    graph = model.graph
    if not nodes:
        return
    first = next(iter(graph), None)
    graph.inputs[graph.inputs.index(old)] = new
    ir.convenience.replace_all_uses_with(old, result)
    for inner in model.graphs():
        inner.outputs[:] = [result if v is old else v for v in inner.outputs]
    if first is None:
        graph.extend(nodes)
    else:
        graph.insert_before(first, nodes)
    result.shape = old.shape if old.shape is not None else result.shape


# --- after ------------------------------------------------------------------------------------------------------------


def _know_types(model: ir.Model) -> None:
    if any(v.type is None or v.shape is None for v in model.graph.outputs):
        infer_missing(model)


def _check_can_follow(old: ir.Value) -> None:
    if old.is_graph_input() or old.is_initializer() or old.dtype is None or old.shape is None:
        raise InputError(
            f"nothing can be put behind output '{old.name}': it is an input, or has no known type or shape",
            next_step="`torchport inspect` shows types and shapes; `edit` can set a shape",
        )


def _check_names(model: ir.Model, gone: list[ir.Value], results: list[Result]) -> None:
    others = {str(v.name) for v in (*model.graph.inputs, *model.graph.outputs) if v not in gone}
    others |= set(model.graph.initializers)
    for name, _ in results:
        if name in others:
            raise InputError(f"the model has a tensor '{name}' already", next_step="give other names to the step")


def _put_after(model: ir.Model, gone: list[ir.Value], results: list[Result], nodes: list[ir.Node]) -> None:
    graph = model.graph
    if not nodes:
        return
    graph.extend(nodes)
    at = list(graph.outputs).index(gone[0])
    kept = [v for v in graph.outputs if v not in gone]
    graph.outputs[:] = [*kept[:at], *(v for _, v in results), *kept[at:]]
    names = FreshNames(model)
    wanted = {name for name, _ in results}
    for value in [v for node in graph for v in node.outputs if v.name in wanted]:
        value.name = names.fresh(f"{value.name}_raw")
    for name, value in results:
        value.name = name
    for node in reversed(nodes):  # sizes behind the last step of an image, which nobody reads
        if not any(value.uses() or value.is_graph_output() for value in node.outputs):
            graph.remove(node, safe=True)
