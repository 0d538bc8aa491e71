"""Turn weights into inputs, and inputs into weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx
import onnx_ir as ir

from torchport.errors import InputError
from torchport.graph.edits.choosing import unproves
from torchport.graph.edits.following import infer_again
from torchport.graph.edits.tidying import take_out
from torchport.graph.edits.trying import Undo, attempt
from torchport.inputs.arrays import tensor_for
from torchport.irtools.dims import change_dims
from torchport.irtools.inference import without_weights
from torchport.irtools.metadata import ANNOTATION
from torchport.irtools.names import unknown, where
from torchport.irtools.traversal import each_value, is_constant, values_of

# --- a weight becomes an input ----------------------------------------------------------------------------------------


@unproves
def to_input(model: ir.Model, name: str) -> int:
    """Make a weight, or what a Constant node gives, an input of the model. Its numbers are dropped, unread.

    An input that has a default value loses it, and must be given from then on.

    Args:
        model: changed in place.
        name: of the tensor; it may be inside a branch or body.

    Returns:
        1.

    Raises:
        InputError: there is no such constant, or it cannot be reached from outside.

    Example:
        >>> tp.graph.to_input(model, "anchors")
    """
    value = _constant(model, name)
    tensor = ir.convenience.get_const_tensor(value)
    assert tensor is not None
    node, new = value.producer(), value
    if node is not None:
        new = ir.Value(name=name, doc_string=value.doc_string, metadata_props=dict(value.metadata_props))
        if ANNOTATION in value.meta:
            new.meta[ANNOTATION] = value.meta[ANNOTATION]
        value.replace_all_uses_with(new, replace_graph_outputs=True)
        take_out([node])
    else:
        assert isinstance(value.graph, ir.Graph)
        del value.graph.initializers[name]
    new.const_value, new.type, new.shape = None, ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
    if not new.is_graph_input():
        model.graph.inputs.append(new)
    return 1


def _constant(model: ir.Model, name: str) -> ir.Value:
    graphs = [model.graph, *model.graph.subgraphs()]
    found = [v for g in graphs for v in dict.fromkeys(values_of(g)) if v.name == name]
    if not found:
        raise _not_outside(model, name)
    value = found[0]
    if not value.is_initializer() and not is_constant(value.producer()):
        producer = value.producer()
        why = f"{where(producer)} computes it" if producer is not None else "it is an input already"
        raise InputError(f"'{name}' is no constant: {why}", next_step="name a weight, or what a Constant node gives")
    inside = value not in set(values_of(model.graph))
    if len(found) > 1 or (inside and value.is_graph_output()):
        why = "several branches have one of that name" if len(found) > 1 else "it is the result of a branch"
        raise InputError(
            f"'{name}' cannot become an input: {why}", next_step="rename one, or replace it by an Identity"
        )
    return value


def _not_outside(model: ir.Model, name: str) -> InputError:
    for function in model.functions.values():
        if any(v.name == name for g in (function.graph, *function.graph.subgraphs()) for v in values_of(g)):
            return InputError(
                f"'{name}' is inside the function '{function.domain}::{function.name}'",
                next_step="write the function out first: tp.graph.inline, or --inline",
            )
    every = {str(v.name) for g in (model.graph, *model.graph.subgraphs()) for v in values_of(g)}
    return unknown(name, "weight", every)


# --- an input becomes a weight ----------------------------------------------------------------------------------------


@unproves
def to_constant(model: ir.Model, name: str, value: Any) -> int:
    """Make an input of the model a weight. A dynamic dimension whose size that settles gets it everywhere.

    Args:
        model: changed in place.
        name: of the input.
        value: an array or tensor of its dtype, numbers or a list of numbers, or the path of a ``.npy``. A single
            number fills an input of fixed shape.

    Returns:
        1.

    Raises:
        InputError: there is no such input, the value does not fit it, or the model contradicts it.

    Example:
        >>> tp.graph.to_constant(model, "threshold", 0.5)
    """
    inputs = {str(v.name): v for v in model.graph.inputs}
    if name not in inputs:
        raise unknown(name, "input", inputs)
    given = inputs[name]
    if not isinstance(given.type, ir.TensorType) or given.dtype is None:
        raise InputError(f"the input '{name}' is no tensor, so it cannot be a weight", next_step="choose another input")
    tensor = tensor_for(given, value)
    sizes = _sizes(given, tensor)
    attempt(model, lambda: _settle(model, given, tensor, sizes), f"'{name}' cannot be that")
    return 1


def _sizes(given: ir.Value, tensor: ir.TensorProtocol) -> dict[str, int]:
    """The size of each dynamic dimension that the value settles."""
    shape, found = tuple(tensor.shape.numpy()), dict[str, int]()
    if given.shape is None:
        return found
    fits = len(shape) == len(given.shape)
    for dim, size in zip(given.shape, shape, strict=False):
        if isinstance(dim, int):
            fits = fits and dim == size
        elif dim.value is not None:
            fits = fits and found.setdefault(dim.value, size) == size
    if not fits:
        raise InputError(
            f"the input '{given.name}' is {given.shape}, what is given is [{','.join(map(str, shape))}]",
            next_step="give it in that shape",
        )
    return {name: size for name, size in found.items() if name.isidentifier()}


def _settle(model: ir.Model, given: ir.Value, tensor: ir.TensorProtocol, sizes: Mapping[str, int]) -> Undo:
    shapes = [(v, v.shape) for v in each_value(model)]
    place, default, version = list(model.graph.inputs).index(given), given.const_value, model.ir_version
    model.graph.inputs.pop(place)  # del would leave it marked as an input
    given.const_value, given.shape = tensor, ir.Shape(tensor.shape.numpy())
    model.graph.register_initializer(given)
    model.ir_version = max(version, 4)  # before, weights had to be inputs
    for value in each_value(model):
        change_dims(value, lambda text: _at(text, sizes))
    _sharpen(model)
    restore = infer_again(model)

    def undo() -> None:
        restore()
        given.const_value, model.ir_version = default, version
        if default is None:
            del model.graph.initializers[str(given.name)]
        model.graph.inputs.insert(place, given)
        for value, shape in shapes:
            value.shape = shape

    return undo


def _at(text: str, sizes: Mapping[str, int]) -> str | int:
    if text in sizes or not any(name in text for name in sizes):
        return sizes.get(text, text)
    try:
        found = ir.SymbolicDim(text).evaluate(sizes)
    except ValueError:
        return text  # no expression, only a name that looks like one
    return found if isinstance(found, int) else str(found.value)


def _sharpen(model: ir.Model) -> None:
    """Dimensions that a known value makes known: of what is reshaped by it, say."""
    try:
        proto = onnx.shape_inference.infer_shapes(without_weights(model), data_prop=True)
    except onnx.shape_inference.InferenceError:
        return  # the check of the whole edit says what is wrong
    for graph, typed in zip(model.graphs(), ir.from_proto(proto).graphs(), strict=True):
        known = ir.convenience.create_value_mapping(typed)
        for value in values_of(graph):
            found = known[value.name].shape if value.name in known else None
            if value.shape is not None and found is not None and len(found) == len(value.shape):
                dims = [b if isinstance(b, int) else a for a, b in zip(value.shape, found, strict=True)]
                value.shape = ir.Shape(dims)
