"""Replace computed shapes by constants: a reshape of which one size is dynamic is -1 there; dimensions that a model
reads off a tensor are read off with one operator."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from torchport.editing.fold import sharpen
from torchport.irtools.node_reader import attribute, constant, input_at, integer
from torchport.irtools.traversal import all_nodes
from torchport.optimization.passes.graph_pass import GraphPass, Work, initializer, is_operator


def _apply(model: ir.Model, work: Work) -> None:
    for node in list(all_nodes(model)):
        if is_operator(node, "Reshape") and isinstance(node.graph, ir.Graph):
            work.looks_at(node)
            _state_sizes(node, model, work)
    if work.changes:
        sharpen(model)


def _state_sizes(node: ir.Node, model: ir.Model, work: Work) -> None:
    """Give a reshape its sizes as a constant, where all but one are known or are those of its input."""
    data, sizes = input_at(node, 0), input_at(node, 1)
    if data is None or sizes is None or constant(sizes) is not None:
        return
    found = _known_sizes(node, data, sizes)
    if found is None or (0 in found and attribute(node, "allowzero")) or not work.permits(node):
        return
    graph = model.graph if not isinstance(node.graph, ir.Graph) else node.graph
    node.replace_input_with(1, initializer(graph, np.array(found, dtype=np.int64), f"{node.outputs[0].name}_sizes"))


def _known_sizes(node: ir.Node, data: ir.Value, sizes: ir.Value) -> list[int] | None:
    """Return the sizes: numbers, 0 for "as the input's axis of that place", and one -1 at most; None if unknown."""
    parts = _parts(sizes)
    shape = node.outputs[0].shape
    if parts is None:
        parts = [None] * len(shape) if shape is not None else None
    if parts is None or (shape is not None and len(shape) != len(parts)):
        return None
    stated = list(shape) if shape is not None else [None] * len(parts)
    found: list[int] = []
    for axis, (part, dim) in enumerate(zip(parts, stated, strict=True)):
        if isinstance(part, int):
            found.append(part)
        elif isinstance(dim, int) and dim > 0:
            found.append(dim)
        elif part == (data, axis) or _same_dim(data, axis, part):
            found.append(0)
        else:
            found.append(-1)
    if found.count(-1) > 1 or (-1 in found and any(isinstance(d, int) and d == 0 for d in data.shape or ())):
        return None
    if -1 in found and not _may_infer(parts, found):
        return None
    return found


def _may_infer(parts: list[int | tuple[ir.Value, int] | None], found: list[int]) -> bool:
    """Check that -1 means the same: with a 0 in the shape at run time, it could not be worked out."""
    return all(n != 0 or not isinstance(part, int) for n, part in zip(found, parts, strict=True))


def _same_dim(data: ir.Value, axis: int, part: object) -> bool:
    """Check that a size read off another tensor is stated to be the data's own at this axis."""
    if not isinstance(part, tuple) or data.shape is None or axis >= len(data.shape):
        return False
    other, place = part
    if other.shape is None or place >= len(other.shape):
        return False
    mine, theirs = data.shape[axis], other.shape[place]
    return isinstance(mine, ir.SymbolicDim) and mine.value is not None and mine == theirs


def _parts(sizes: ir.Value) -> list[int | tuple[ir.Value, int] | None] | None:
    """Return what each element of a computed shape is: a number, an axis of a tensor, or something else."""
    array = constant(sizes)
    if array is not None:
        return [int(n) for n in array.reshape(-1)]
    node = sizes.producer()
    if node is None:
        return None
    if is_operator(node, "Concat"):
        found: list[int | tuple[ir.Value, int] | None] = []
        for value in node.inputs:
            parts = None if value is None else _parts(value)
            if parts is None:
                return None
            found += parts
        return found
    if is_operator(node, "Shape"):
        return _axes_of(node)
    if is_operator(node, "Unsqueeze", "Reshape", "Squeeze", "Cast", "Identity") and node.inputs[0] is not None:
        return _parts(node.inputs[0])
    if is_operator(node, "Gather") and node.inputs[0] is not None:
        every, index = _parts(node.inputs[0]), constant(input_at(node, 1))
        if every is None or index is None or index.size != 1 or not -len(every) <= int(index.item()) < len(every):
            return None
        return [every[int(index.item())]]
    shape = sizes.shape
    single = shape is not None and (len(shape) == 0 or (len(shape) == 1 and shape[0] == 1))
    return [None] if single else None


def _axes_of(node: ir.Node) -> list[int | tuple[ir.Value, int] | None] | None:
    value = node.inputs[0]
    if value is None or value.shape is None:
        return None
    axes = range(len(value.shape))[slice(integer(node, "start", 0), attribute(node, "end"))]
    dims = [value.shape[axis] for axis in axes]
    return [d if isinstance(d, int) else (value, axis) for axis, d in zip(axes, dims, strict=True)]


PASS = GraphPass(
    "shape arithmetic",
    requires="a reshape whose sizes are computed, of which all but one are known or are those of its own input",
    ensures="such a reshape has its sizes as a constant, and what computed them is dead",
    apply=_apply,
)
