"""Recognize rotary position embeddings that are written out.

    x · cos + [−x₂, x₁] · sin   →   RotaryEmbedding (opset 23), x₁ and x₂ the halves of the last axis

The operator takes one half of cos and sin, so it is made only where the halves are known to be equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from torchport.irtools.node_reader import FLOATS, constant, input_at, integer
from torchport.irtools.traversal import all_nodes
from torchport.optimization.passes.dataflow import last_size, made_by, number, only_user, other_input, size_of
from torchport.optimization.passes.graph_pass import GraphPass, Work, initializer, is_operator, replace
from torchport.optimization.result import OPENVINO

OPSET = 23  # the first with RotaryEmbedding


class Found(NamedTuple):
    """A rotary embedding that is written out, and the reason why it stays; empty if it need not."""

    last: ir.Node
    x: ir.Value
    cos: ir.Value
    sin: ir.Value
    reason: str


def find(model: ir.Model) -> Iterator[Found]:
    """Iterate over the rotary embeddings in a model."""
    for node in list(all_nodes(model)):
        if is_operator(node, "Concat") and len(node.inputs) == 2:
            found = _rotary(node)
            if found is not None:
                yield found


def _rotary(concat: ir.Node) -> Found | None:
    negated = made_by(concat.inputs[0], "Neg")
    x = None if negated is None else _whole(concat.inputs[1], negated.inputs[0])
    times_sin = only_user(concat.outputs[0], "Mul")
    last = None if times_sin is None else only_user(times_sin.outputs[0], "Add")
    if x is None or times_sin is None or last is None:
        return None
    times_cos = made_by(other_input(last, times_sin.outputs[0]), "Mul")
    sin = other_input(times_sin, concat.outputs[0])
    if times_cos is None or x not in times_cos.inputs or sin is None:
        return None
    cos = other_input(times_cos, x)
    return None if cos is None else Found(last, x, cos, sin, _reason(x, cos, sin))


def _whole(first: ir.Value | None, second: ir.Value | None) -> ir.Value | None:
    """Return the value of which two others are the first and the second half of the last axis."""
    split = made_by(first, "Split")
    if split is not None and second is not None and second.producer() is split:
        rank = len(split.outputs[0].shape or ())
        last = integer(split, "axis", 0) in (-1, rank - 1)
        halves = last_size(first) is not None and last_size(first) == last_size(second)
        ordered = list(split.outputs) == [first, second]
        return split.inputs[0] if last and halves and ordered else None
    parts = [made_by(value, "Slice") for value in (first, second)]
    if any(part is None for part in parts) or first is None or second is None:
        return None
    a, b = (part for part in parts if part is not None)
    size = last_size(a.inputs[0])
    if a.inputs[0] is not b.inputs[0] or size is None or size % 2:
        return None
    return a.inputs[0] if _range(a, size) == (0, size // 2) and _range(b, size) == (size // 2, size) else None


def _range(node: ir.Node, size: int) -> tuple[int, int] | None:
    """Return the places of the last axis that a slice takes; None if it takes others."""
    arrays = [constant(input_at(node, place)) for place in (1, 2, 3)]
    steps = constant(input_at(node, 4))
    value = node.inputs[0]
    if any(array is None or array.size != 1 for array in arrays) or (steps is not None and steps.tolist() != [1]):
        return None
    start, end, axis = (int(array.item()) for array in arrays if array is not None)
    if value is None or axis not in (-1, len(value.shape or ()) - 1):
        return None
    return start % size if start < 0 else start, min(end % size if end < 0 else end, size)


def _reason(x: ir.Value, cos: ir.Value, sin: ir.Value) -> str:
    """Return why it cannot be one operator."""
    if x.shape is None or len(x.shape) != 4 or x.dtype not in FLOATS:
        return "its input is not known to have four dimensions"
    if last_size(x) is None or last_size(cos) != last_size(x) or last_size(sin) != last_size(x):
        return "it rotates a part of the last axis"
    if not all(_has_halves(value) for value in (cos, sin)):
        return "the halves of its cosines and sines are not known to be equal"
    if not all(_is_by_position(value) for value in (cos, sin)):
        return "its cosines and sines differ by head"
    return ""


def _is_by_position(value: ir.Value) -> bool:
    dims = list(value.shape or ())
    return len(dims) == 2 or (len(dims) == 3 and dims[0] == 1) or (len(dims) == 4 and dims[1] == 1)


def _has_halves(value: ir.Value | None, depth: int = 10) -> bool:
    """Check that the two halves of the last axis are equal."""
    array = constant(value)
    if array is not None:
        half = array.shape[-1] // 2 if array.ndim else 0
        return half > 0 and array.shape[-1] == 2 * half and np.array_equal(array[..., :half], array[..., half:])
    concat = made_by(value, "Concat")
    if concat is not None:
        rank = len(concat.outputs[0].shape or ())
        same = len(concat.inputs) == 2 and concat.inputs[0] is concat.inputs[1]
        return same and integer(concat, "axis", 0) in (-1, rank - 1)
    node = made_by(value, "Cos", "Sin", "Cast", "Identity", "Unsqueeze", "Mul", "Gather", "Expand")
    if node is None or depth == 0 or not _keeps_last_axis(node):
        return False
    scaled = node.op_type == "Mul" and number(node.inputs[0]) is not None
    return _has_halves(node.inputs[1 if scaled else 0], depth - 1)


def _keeps_last_axis(node: ir.Node) -> bool:
    if node.op_type == "Mul":
        return any(number(value) is not None for value in node.inputs)
    if node.op_type == "Gather":
        return integer(node, "axis", 0) == 0
    if node.op_type == "Unsqueeze":
        axes, rank = constant(input_at(node, 1)), len(node.outputs[0].shape or ())
        return axes is not None and all(int(axis) not in (-1, rank - 1) for axis in axes.reshape(-1))
    return node.op_type != "Expand" or last_size(node.inputs[0]) == last_size(node.outputs[0])


def _apply(model: ir.Model, work: Work) -> None:
    opset = model.opset_imports.get("", 0)
    for found in find(model):
        graph = found.last.graph
        work.looks_at(found.last)
        if found.reason:
            work.left("rotary embedding", found.last, found.reason)
        elif work.target == OPENVINO:
            work.left("rotary embedding", found.last, "OpenVINO recognizes it by itself")
        elif opset < OPSET:
            reason = f"RotaryEmbedding is an operator from opset {OPSET} on, the model has {opset}"
            work.left("rotary embedding", found.last, reason)
        elif isinstance(graph, ir.Graph) and work.permits(found.last):
            _fuse(found, graph, work)


def _fuse(found: Found, graph: ir.Graph, work: Work) -> None:
    new: list[ir.Node] = []
    caches = [_cache(value, found.x, graph, new) for value in (found.cos, found.sin)]
    node = ir.Node("", "RotaryEmbedding", [found.x, *caches], name=found.last.name)
    new.append(node)
    replace(found.last, new, [found.last.outputs[0]], [node.outputs[0]])
    work.found("rotary embedding", node, "RotaryEmbedding")


def _cache(value: ir.Value, x: ir.Value, graph: ir.Graph, new: list[ir.Node]) -> ir.Value:
    """Return the first half of cosines or sines, [batch, sequence, size / 2]."""
    half, rank = (last_size(value) or 0) // 2, len(value.shape or ())
    dims = list(value.shape or ())
    places = [_numbers(graph, name, [n]) for name, n in (("zero", 0), (f"half_{half}", half), ("last_axis", -1))]
    cut = ir.Node("", "Slice", [value, *places])
    parts = [cut]
    rows = dims[-2]
    if rank == 2:
        parts.append(ir.Node("", "Unsqueeze", [cut.outputs[0], _numbers(graph, "zero", [0])]))
    elif rank == 4:
        parts.append(ir.Node("", "Squeeze", [cut.outputs[0], _numbers(graph, "one", [1])]))
    cut.outputs[0].shape = ir.Shape([*dims[:-1], half])
    batch = size_of(x, 0, graph)
    sizes = ir.Node("", "Concat", [batch.outputs[0], _numbers(graph, "ones", [1, 1])], [ir.AttrInt64("axis", 0)])
    for node, size in ((batch, 1), (sizes, 3)):
        node.outputs[0].type, node.outputs[0].shape = ir.TensorType(ir.DataType.INT64), ir.Shape([size])
    expanded = ir.Node("", "Expand", [parts[-1].outputs[0], sizes.outputs[0]])
    lead = dims[0] if rank > 2 else 1
    parts[-1].outputs[0].shape = ir.Shape([lead, rows, half])
    expanded.outputs[0].shape = ir.Shape([next(iter(x.shape or ())), rows, half])
    for node in (*parts, expanded):
        node.outputs[0].type = value.type
    new += [*parts, batch, sizes, expanded]
    return expanded.outputs[0]


def _numbers(graph: ir.Graph, what: str, numbers: list[int]) -> ir.Value:
    """Return a constant that all embeddings share."""
    name = f"rotary_{what}"
    known = graph.initializers.get(name)
    return known if known is not None else initializer(graph, np.array(numbers, dtype=np.int64), name)


PASS = GraphPass(
    "rotary embeddings",
    requires=f"a rotary embedding that is written out, of halves, in a model of opset {OPSET} or later",
    ensures="it is one operator",
    apply=_apply,
    claims_speed=True,
)
