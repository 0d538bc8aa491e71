"""Set attributes of nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from torchport.editing.retype import infer_again
from torchport.editing.selection import Nodes, chosen_nodes
from torchport.editing.transaction import attempt, in_place, unproves
from torchport.errors import InputError, did_you_mean
from torchport.irtools.names import where
from torchport.irtools.schemas import Schema
from torchport.irtools.types import dtype_named

Kind = ir.AttributeType

_WORDS = {
    Kind.INT: "an integer",
    Kind.FLOAT: "a number",
    Kind.STRING: "a text",
    Kind.TENSOR: "a tensor",
    Kind.INTS: "a list of integers",
    Kind.FLOATS: "a list of numbers",
    Kind.STRINGS: "a list of texts",
}
_OF_ONE = {Kind.INTS: Kind.INT, Kind.FLOATS: Kind.FLOAT, Kind.STRINGS: Kind.STRING}
_DTYPES = ("to", "dtype", "output_dtype")  # attributes that are an integer for a dtype, which has a name


@in_place
@unproves
def set_attribute(model: ir.Model, node: Nodes, name: str, value: Any) -> int:
    """Set an attribute of nodes, or take it away, so that the operator's default holds.

    Args:
        model: changed in place.
        node: a node or its name, an operator (all of its nodes), names with ``*``, or a list of these.
        name: of the attribute.
        value: a number, text, list of these, or an array for a tensor; None takes the attribute away. A dtype
            (``to`` of Cast) may be given by its name.

    Returns:
        How many nodes were changed.

    Raises:
        InputError: the operator has no such attribute, the value is of another type, or the model would contradict
            itself with it; nothing is changed then.

    Example:
        >>> tp.graph.set_attribute(model, "LeakyRelu", "alpha", 0.2)
        >>> tp.graph.set_attribute(model, "resize_3", "mode", "linear")
    """
    found = chosen_nodes(model, node)
    if value is None:
        _check_may_go(model, found, name)
        found = [n for n in found if name in n.attributes]
    new = {n: None if value is None else _made(model, n, name, value) for n in found}
    attempt(model, lambda: _exchange(model, name, new), f"'{name}' of {where(found[0])} cannot be {_short(value)}")
    return len(found)


def _exchange(model: ir.Model, name: str, new: Mapping[ir.Node, ir.Attr | None]) -> None:
    for node, attribute in new.items():
        if attribute is not None:
            node.attributes[name] = attribute
        else:
            node.attributes.pop(name, None)
        for value in node.outputs if node.op_type == "Constant" else ():
            value.const_value = None  # it holds the tensor of the old attribute
    infer_again(model, new)


# --- what the operator allows -----------------------------------------------------------------------------------------

_Rules = dict[str, tuple[Kind, bool]]  # by attribute: its type, and whether it must be given


def _rules(model: ir.Model, node: ir.Node) -> _Rules | None:
    """The attributes that a node may have; None where nobody says."""
    function = model.functions.get(node.op_identifier())
    if function is not None:
        return {n: (_kind_inside(function, n, a), a.value is None) for n, a in function.attributes.items()}
    body = next((f for f in model.functions.values() if node in set(f.all_nodes())), model.graph)
    try:
        schema: Schema = onnx.defs.get_schema(node.op_type, body.opset_imports.get(node.domain, 1), node.domain)
    except onnx.defs.SchemaError:
        return None  # an operator of one's own, or an engine's
    return {n: (Kind.__members__[a.type.name], a.required) for n, a in schema.attributes.items()}


def _kind_inside(function: ir.Function, name: str, parameter: ir.Attr) -> Kind:
    """The type of a function's parameter: that of its default, or of the attribute inside that refers to it."""
    if parameter.type != Kind.UNDEFINED:
        return parameter.type
    inside = (a for n in function.all_nodes() for a in n.attributes.values() if a.ref_attr_name == name)
    return next((a.type for a in inside), Kind.UNDEFINED)


def _check_may_go(model: ir.Model, nodes: list[ir.Node], name: str) -> None:
    for node in nodes:
        rules = _rules(model, node) or {}
        if name in node.attributes and rules.get(name, (None, False))[1]:
            raise InputError(f"{where(node)} must have '{name}'", next_step="give it another value instead")
    if not any(name in node.attributes for node in nodes):
        raise _no_attribute(nodes[0], name, nodes[0].attributes)


def _no_attribute(node: ir.Node, name: str, known: Iterable[str]) -> InputError:
    names = sorted(known)
    listed = f"it has {', '.join(names)}" if names else "it has none"
    next_step = did_you_mean(name, names, listed, more=listed)
    return InputError(f"{where(node)} has no attribute '{name}'", next_step=next_step)


def _made(model: ir.Model, node: ir.Node, name: str, value: Any) -> ir.Attr:
    rules = _rules(model, node)
    if rules is not None and name not in rules:
        raise _no_attribute(node, name, rules)
    present = node.attributes.get(name)
    kind = Kind.UNDEFINED if rules is None else rules[name][0]
    if kind == Kind.UNDEFINED:
        kind = present.type if present is not None else _guessed(value)
    if kind not in _WORDS:
        raise InputError(
            f"'{name}' of {where(node)} is a {kind.name.lower()}, which cannot be set",
            next_step="replace the node instead",
        )
    old = present.value if present is not None and not present.is_ref() and present.type == Kind.TENSOR else None
    try:
        return ir.Attr(name, kind, _tensor(value, old) if kind == Kind.TENSOR else _as(kind, _plain(name, kind, value)))
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"'{name}' of {where(node)} is {_WORDS[kind]}, not {_short(value)}", next_step=f"give {_WORDS[kind]}"
        ) from error


def _guessed(value: Any) -> Kind:
    """The type of an attribute that nobody declares."""
    if isinstance(value, np.ndarray):
        return Kind.TENSOR
    for kind in (Kind.INT, Kind.FLOAT, Kind.STRING, Kind.INTS, Kind.FLOATS, Kind.STRINGS):
        try:
            _as(kind, value)
        except TypeError:
            continue
        if not isinstance(value, Sequence) or len(value) > 0 or kind == Kind.STRING:
            return kind
    raise InputError(f"nothing tells the type of an attribute {_short(value)}", next_step="give numbers, or an array")


def _plain(name: str, kind: Kind, value: Any) -> Any:
    if kind == Kind.INT and name in _DTYPES and isinstance(value, str):
        return int(dtype_named(value))
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def _as(kind: Kind, value: Any) -> Any:
    """The value as that type; TypeError if it is not of it."""
    if kind in _OF_ONE:
        if not isinstance(value, (list, tuple)):
            raise TypeError("no list")
        return [_as(_OF_ONE[kind], v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    if kind == Kind.STRING and isinstance(value, str):
        return value
    if kind == Kind.INT and isinstance(value, int) and -(2**63) <= value < 2**63:
        return int(value)
    if kind == Kind.FLOAT and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    raise TypeError(f"no {kind.name}")


def _tensor(value: Any, old: ir.TensorProtocol | None) -> ir.TensorProtocol:
    """Numbers get the dtype of the tensor they replace, if that has room for them; an array keeps its own."""
    tensor = ir.tensor(value)
    if isinstance(value, np.ndarray) or old is None or old.dtype == tensor.dtype:
        return tensor
    array = tensor.numpy()
    rounded = array.dtype.kind == "f" and old.dtype.is_floating_point()
    if array.dtype.kind not in "if" or not (rounded or np.array_equal(array.astype(old.dtype.numpy()), array)):
        raise TypeError(f"no {old.dtype}")
    return ir.tensor(value, dtype=old.dtype)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
