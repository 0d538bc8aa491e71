"""Change the dtype of a model's inputs and outputs, and of nothing inside it."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir

from torchport.editing.selection import Tensor, tensor_name
from torchport.editing.transaction import in_place, unproves
from torchport.errors import InputError
from torchport.irtools.metadata import EDIT
from torchport.irtools.names import FreshNames, unknown
from torchport.irtools.schemas import allowed_types, schema_at, type_name
from torchport.irtools.types import dtype_named, plain

_OURS = "set_dtype"
_FIRST_CAST = 13  # the opset for a model that imports none: the first whose Cast knows bfloat16


@in_place
@unproves
def set_dtype(model: ir.Model, name: Tensor, dtype: str | ir.DataType) -> int:
    """Change the dtype of an input or output, with a Cast inside, so that all else stays as it was.

    Names stay. Setting the dtype again changes that Cast, and setting it back takes the Cast out. An output that is
    cast to integers loses fractions, and values that do not fit are undefined, as ONNX says of Cast.

    Args:
        model: changed in place.
        name: an input or output of the model, or its name.
        dtype: ``float16``, ``uint8``, ``int32``, ... as numpy and PyTorch write them, or an `ir.DataType`.

    Returns:
        1, or 0 where it has that dtype already.

    Raises:
        InputError: there is no such input or output, or it cannot be cast from or to that.

    Example:
        >>> tp.graph.set_dtype(model, "image", "uint8")
        >>> tp.graph.set_dtype(model, "logits", "float16")
    """
    value, is_input = _end(model, tensor_name(model, name))
    wanted = dtype_named(dtype) if isinstance(dtype, str) else dtype
    if value.dtype == wanted:
        return 0
    _check_castable(model, value, wanted)
    default = _converted(value, wanted) if is_input and value.const_value is not None else None
    model.graph.opset_imports.setdefault("", _FIRST_CAST)
    (_set_input if is_input else _set_output)(model.graph, value, wanted)
    if default is not None:
        value.const_value = default
    return 1


def _end(model: ir.Model, name: str) -> tuple[ir.Value, bool]:
    """The input or output of that name, and whether it is an input."""
    inputs = {str(v.name): v for v in model.graph.inputs}
    outputs = {str(v.name): v for v in model.graph.outputs}
    if name not in inputs and name not in outputs:
        raise unknown(name, "input or output", [*inputs, *outputs])
    if name in inputs and name in outputs:
        raise InputError(
            f"'{name}' is an input and an output of the model, and would need two dtypes",
            next_step="put an Identity between them first",
        )
    return (inputs | outputs)[name], name in inputs


def _check_castable(model: ir.Model, value: ir.Value, wanted: ir.DataType) -> None:
    if not isinstance(value.type, ir.TensorType) or value.dtype in (None, ir.DataType.UNDEFINED, ir.DataType.STRING):
        raise InputError(
            f"'{value.name}' is {type_name(value.type) or 'of a type nobody knows'}, which cannot be cast",
            next_step="set the dtype of a tensor of numbers",
        )
    opset = model.graph.opset_imports.get("", _FIRST_CAST)
    schema = schema_at("Cast", opset)
    for kind in (value.type, ir.TensorType(wanted)):
        if schema is None or type_name(kind) not in allowed_types(schema, schema.inputs[0]):
            raise InputError(
                f"'{value.name}' cannot be cast from {plain(value.type.dtype)} to {plain(wanted)}: "
                f"Cast of opset {opset} does not know {plain(kind.dtype)}",
                next_step="raise the opset first, or take another dtype",
            )


def _converted(value: ir.Value, wanted: ir.DataType) -> ir.TensorProtocol:
    """The value an input has when none is given, in the new dtype."""
    assert value.const_value is not None
    array = value.const_value.numpy()
    new = array.astype(wanted.numpy())
    if not np.array_equal(new.astype(array.dtype), array):
        raise InputError(
            f"the default value of input '{value.name}' does not fit into {plain(wanted)}",
            next_step="drop it first: tp.graph.to_input, or --to-input",
        )
    return ir.Tensor(new, dtype=wanted, name=value.name)


def _set_input(graph: ir.Graph, value: ir.Value, wanted: ir.DataType) -> None:
    before = value.dtype
    users = {use.node for use in value.uses()}
    cast = users.pop() if len(users) == 1 else None
    known = cast is not None and _may_go(cast, graph, wanted, before)
    value.type = ir.TensorType(wanted)
    if not value.uses():
        return
    if cast is None or not known:
        _cast_behind(graph, value, before)
    elif _target(cast) == wanted and not cast.outputs[0].is_graph_output():
        cast.outputs[0].replace_all_uses_with(value)
        graph.remove(cast, safe=True)


def _cast_behind(graph: ir.Graph, value: ir.Value, to: ir.DataType | None) -> None:
    """What used an input uses a Cast of it."""
    cast = _cast(graph, value, to, str(value.name))
    value.replace_all_uses_with(cast.outputs[0])
    cast.replace_input_with(0, value)
    first = next(iter(graph), None)
    graph.append(cast) if first is None else graph.insert_before(first, cast)


def _set_output(graph: ir.Graph, value: ir.Value, wanted: ir.DataType) -> None:
    cast = value.producer()
    if cast is None or value.uses() or not _may_go(cast, graph, wanted, value.dtype):
        _cast_to_output(graph, value, wanted)
        return
    source = cast.inputs[0]
    assert source is not None
    producer = source.producer()
    if source.dtype == wanted and producer is not None and producer.graph is graph and not source.is_graph_output():
        _give_output(graph, value, source)
        graph.remove(cast, safe=True)
    else:
        cast.attributes["to"] = ir.AttrInt64("to", int(wanted))
        value.type = ir.TensorType(wanted)


def _cast_to_output(graph: ir.Graph, value: ir.Value, wanted: ir.DataType) -> None:
    cast = _cast(graph, value, wanted, str(value.name))
    _give_output(graph, value, cast.outputs[0])
    graph.append(cast)


def _give_output(graph: ir.Graph, value: ir.Value, other: ir.Value) -> None:
    """Another value takes the place and name of an output, which gets the other's."""
    graph.outputs[:] = [other if v is value else v for v in graph.outputs]
    name, spare = str(value.name), str(other.name)
    ir.convenience.rename_values([value, other], [spare, name])
    other.doc_string, value.doc_string = value.doc_string, None


def _cast(graph: ir.Graph, value: ir.Value, to: ir.DataType | None, name: str) -> ir.Node:
    assert to is not None
    names = FreshNames(graph)
    inner, title = names.fresh(f"{name}_cast"), names.fresh(f"cast_{name}")
    node = ir.node("Cast", [value], {"to": int(to)}, name=title, metadata_props={EDIT: _OURS})
    output = node.outputs[0]
    output.name, output.type = inner, ir.TensorType(to)
    output.shape = None if value.shape is None else value.shape.copy()
    return node


def _may_go(cast: ir.Node, graph: ir.Graph, wanted: ir.DataType, middle: ir.DataType | None) -> bool:
    """Whether a Cast is ours to change, or undoes what is asked for now without a loss."""
    if cast.op_type != "Cast" or cast.domain or cast.graph is not graph or middle is None:
        return False
    if cast.metadata_props.get(EDIT) == _OURS:
        return True
    source = cast.inputs[0]
    ends = {_target(cast), None if source is None else source.dtype}
    return ends == {wanted, middle} and _holds(middle, wanted)


def _target(cast: ir.Node) -> ir.DataType | None:
    """The dtype a Cast gives, which its output need not state; None where that is a function's parameter."""
    to = cast.attributes["to"]
    return None if to.is_ref() else ir.DataType(to.as_int())


def _holds(wide: ir.DataType, narrow: ir.DataType) -> bool:
    """Whether every number of one dtype is a number of the other."""
    if ir.DataType.BOOL in (wide, narrow):
        return narrow == ir.DataType.BOOL
    if narrow.is_floating_point():
        return wide.is_floating_point() and _digits(wide) >= _digits(narrow) and _reach(wide) >= _reach(narrow)
    low, high = int(ml_dtypes.iinfo(narrow.numpy()).min), int(ml_dtypes.iinfo(narrow.numpy()).max)
    if wide.is_floating_point():
        return max(-low, high) <= 2 ** _digits(wide) and high <= _reach(wide)
    return int(ml_dtypes.iinfo(wide.numpy()).min) <= low and high <= int(ml_dtypes.iinfo(wide.numpy()).max)


def _digits(dtype: ir.DataType) -> int:
    return int(ml_dtypes.finfo(dtype.numpy()).nmant) + 1


def _reach(dtype: ir.DataType) -> float:
    return float(ml_dtypes.finfo(dtype.numpy()).max)
