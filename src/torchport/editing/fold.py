"""Compute now what does not depend on the model's inputs.

onnxscript folds too, with changes of meaning: a CastLike loses its `saturate`, parameters of functions are taken for
absent, and functions are read by the model's opset. So each node is computed here by itself, with onnx's reference
implementation, and only operators that it and onnxruntime are known to agree on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from torchport.editing.fragment import Fragment
from torchport.editing.splice import Grafting, drop_unread
from torchport.editing.transaction import in_place
from torchport.errors import OptionError
from torchport.irtools import node_reader
from torchport.irtools.dims import is_generated
from torchport.irtools.evaluation import COMPUTED, GROWING, MOVING, PLAIN, are_of, computed
from torchport.irtools.inference import infer_missing
from torchport.irtools.traversal import Match, Scope, opset_of, scoped_nodes
from torchport.tensors import Array

LIMIT_BYTES = 16 * 2**20
_GROWN = 64 * 1024  # bytes of what an operator makes out of a few numbers: more would only make the file larger
_FIRST_IR_OF_FREE_INITIALIZERS = 4


@in_place
def fold(model: ir.Model, *, limit_bytes: int = LIMIT_BYTES) -> int:
    """Put constants in the place of nodes that always give the same, in the graph, its branches and its functions.

    Sizes that are known count as constant, also single ones of a shape that is else dynamic. An ``If`` whose condition
    is known becomes the branch it takes. Random operators, quantization and operators of other domains stay.

    Args:
        model: changed in place.
        limit_bytes: tensors larger than this are neither read nor made.

    Returns:
        How many nodes were computed.

    Example:
        >>> tp.graph.fold(model)
    """
    if isinstance(limit_bytes, bool) or not isinstance(limit_bytes, int) or limit_bytes < 0:
        raise OptionError(f"limit_bytes cannot be {limit_bytes!r}", next_step="give a number of bytes, such as 1048576")
    infer_missing(model)
    total = 0
    while True:
        folder = _Folder(model, limit_bytes)
        count = sum(folder.fold(scope, node) for scope, node in scoped_nodes(model))
        total += count
        if not count:
            break
        sharpen(model)
    if total:
        Grafting(model).finish()
    return total


def sharpen(model: ir.Model) -> None:
    """Infer again the shapes that were not fully known, now that more is constant."""
    ends = {v for graph in model.graphs() for v in graph.outputs}
    values = [v for _, n in scoped_nodes(model) for v in n.outputs if v not in ends and _is_vague(v)]
    before = {v: v.shape for v in values}
    for value in values:
        value.shape = None
    infer_missing(model)
    for value, shape in before.items():
        if value.shape is None or (shape is not None and len(shape) != len(value.shape)):
            value.shape = shape


def _is_vague(value: ir.Value) -> bool:
    dims = value.shape or ()
    return any(isinstance(d, ir.SymbolicDim) and (d.value is None or is_generated(d.value)) for d in dims)


class _Folder:
    """Goes once over a model, whose shapes do not change meanwhile."""

    def __init__(self, model: ir.Model, limit: int) -> None:
        self._model = model
        self._limit = limit
        self._unknown: dict[tuple[ir.Value, int], int] = {}

    def fold(self, scope: Scope, node: ir.Node) -> int:
        """1 if the node was replaced by what it gives."""
        if (
            node.graph is None
            or node.domain not in ("", "ai.onnx")
            or any(a.is_ref() for a in node.attributes.values())
        ):
            return 0
        if node.op_type == "If":
            return self._take_branch(scope, node)
        opset = opset_of(scope) or 1
        arrays = self._known(node, opset)
        if arrays is None or not are_of(node, arrays) or sum(a.nbytes for a in arrays) > self._limit:
            return 0
        self._put(scope, node, arrays)
        return 1

    # --- what a node gives ---

    def _known(self, node: ir.Node, opset: int) -> list[Array] | None:
        if node.op_type == "Shape" and node.inputs[0] is not None:
            dims = self._dims(node)
            return None if dims is None or self._is_open(dims) else [dims]
        if node.op_type == "Size":
            sizes = node_reader.static_dims(node.inputs[0])
            return None if sizes is None else [np.array(math.prod(sizes), dtype=np.int64)]
        if node.op_type not in COMPUTED or not node.inputs or not self._is_small(node):
            return None
        inputs = [None if v is None else self._constant(v) for v in node.inputs]
        if all(a is not None or v is None for a, v in zip(inputs, node.inputs, strict=True)):
            return computed(node, inputs, opset)
        moved = self._moved(node, opset, depth=16) if node.op_type in MOVING else None
        return None if moved is None or self._is_open(moved) else [moved]

    def _constant(self, value: ir.Value) -> Array | None:
        tensor = value.const_value if value.producer() is None else None
        if tensor is not None and (tensor.nbytes > self._limit or tensor.dtype == ir.DataType.STRING):
            return None
        array = node_reader.constant(value)
        return array if array is not None and array.dtype.name in PLAIN and array.nbytes <= self._limit else None

    def _is_small(self, node: ir.Node) -> bool:
        """Whether what the node gives may be made; of unknown size, only if it is no larger than its inputs."""
        limit = min(self._limit, _GROWN) if node.op_type in GROWING else self._limit
        for value in node.outputs:
            sizes = node_reader.static_dims(value)
            if sizes is None or value.dtype is None:
                if node.op_type in GROWING:
                    return False
            elif math.prod(sizes) * value.dtype.itemsize > limit:
                return False
        return True

    # --- shapes of which a part is known: what is not is a number that cannot be meant, and is only moved about ---

    def _dims(self, node: ir.Node) -> Array | None:
        value = node.inputs[0]
        if value is None or value.shape is None:
            return None
        dims = [d if isinstance(d, int) else self._open(value, axis) for axis, d in enumerate(value.shape)]
        end = node_reader.attribute(node, "end")
        return np.array(dims[slice(node_reader.integer(node, "start", 0), end)], dtype=np.int64)

    def _open(self, value: ir.Value, axis: int) -> int:
        return self._unknown.setdefault((value, axis), -(2**62) - len(self._unknown))

    def _is_open(self, array: Array) -> bool:
        return bool((array <= -(2**62)).any())

    def _moved(self, node: ir.Node, opset: int, *, depth: int) -> Array | None:
        inputs: list[Array | None] = []
        for index, value in enumerate(node.inputs):
            array = None if value is None else self._constant(value)
            if array is None and value is not None and (index == 0 or node.op_type == "Concat"):
                array = self._part(value, opset, depth=depth - 1)
            if array is None and value is not None:
                return None
            inputs.append(array)
        found = computed(node, inputs, opset)
        return found[0] if found else None

    def _part(self, value: ir.Value, opset: int, *, depth: int) -> Array | None:
        producer = value.producer()
        if producer is None or producer.domain or depth < 0 or any(a.is_ref() for a in producer.attributes.values()):
            return None
        if producer.op_type == "Shape":
            return self._dims(producer)
        return self._moved(producer, opset, depth=depth) if producer.op_type in MOVING else None

    # --- into the graph ---

    def _put(self, scope: Scope, node: ir.Node, arrays: Sequence[Array]) -> None:
        graph, inputs = node.graph, [v for v in node.inputs if v is not None]
        assert graph is not None
        for old, array in zip(node.outputs, arrays, strict=True):
            name, old.name = old.name, None
            tensor = ir.tensor(np.ascontiguousarray(array) if array.ndim else array, name=name)
            if _needs_node(self._model, scope, old):
                made = ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)], name=node.name)
                made.metadata_props.update(node.metadata_props)
                graph.insert_before(node, made)
                new = made.outputs[0]
                new.name = name
            elif old.uses():
                new = ir.Value(name=name, const_value=tensor)
                graph.register_initializer(new)
            else:
                continue
            new.type, new.shape = ir.TensorType(tensor.dtype), ir.Shape(array.shape)
            new.metadata_props.update(old.metadata_props)
            old.replace_all_uses_with(new, replace_graph_outputs=True)
        graph.remove(node, safe=True)
        _drop_dead(inputs)

    def _take_branch(self, scope: Scope, node: ir.Node) -> int:
        condition = None if node.inputs[0] is None else self._constant(node.inputs[0])
        if condition is None or condition.size != 1:
            return 0
        branch = node.attributes["then_branch" if condition.item() else "else_branch"].as_graph()
        grafting = Grafting(self._model)
        base = str(node.name or node.outputs[0].name)
        graft = grafting.copy(Fragment(branch, f"the branch of '{base}'"), [], {}, base, scope)
        grafting.put(Match((node,), {}, tuple(node.outputs), {}, scope), graft)
        return 1


def _drop_dead(values: Sequence[ir.Value]) -> None:
    """Take out what led to a constant alone, such as the Shape whose one size was known."""
    waiting = list(values)
    while waiting:
        node = waiting.pop().producer()
        plain = node is not None and not node.domain and node.op_type in COMPUTED | {"Shape"}
        if (
            node is None
            or node.graph is None
            or not plain
            or any(v.uses() or v.is_graph_output() for v in node.outputs)
        ):
            continue
        inputs = [v for v in node.inputs if v is not None]
        node.graph.remove(node, safe=True)
        waiting += inputs
        drop_unread(inputs)
    drop_unread(values)


def _needs_node(model: ir.Model, scope: Scope, value: ir.Value) -> bool:
    """Whether a constant must be a node: functions have no weights, and an output should be made by something."""
    old = model.ir_version < _FIRST_IR_OF_FREE_INITIALIZERS
    return isinstance(scope, ir.Function) or value.is_graph_output() or old
