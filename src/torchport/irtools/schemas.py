"""What the installed onnx says an operator is at an opset, and whether a node fits it."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from torchport.errors import InputError, did_you_mean
from torchport.irtools.node_reader import Refusal


def type_variable(schema: Any, index: int) -> str:
    """The type variable of an input: inputs of one are of one type; those of an unknown operator are taken to be."""
    if schema is None or not schema.inputs:
        return "T"
    return str(formal_at(schema.inputs, index).type_str)


def dtype_at(schema: Any, index: int, kinds: Mapping[str, ir.DataType]) -> ir.DataType | None:
    """The dtype a number should have at an input, where that is certain."""
    formal = type_variable(schema, index)
    if formal in kinds:
        return kinds[formal]
    allowed = [] if schema is None else sorted(allowed_types(schema, formal_at(schema.inputs, index)))
    names = {"float": "FLOAT", "double": "DOUBLE"}
    one = allowed[0].removeprefix("tensor(").removesuffix(")") if len(allowed) == 1 else ""
    return ir.DataType[names.get(one, one.upper())] if one else None


_NUMBERS = {"float32": "FLOAT", "float64": "DOUBLE", "half": "FLOAT16"}


def with_name(name: str, attribute: ir.Attr) -> ir.Attr:
    if attribute.is_ref():
        return ir.RefAttr(name, str(attribute.ref_attr_name), attribute.type)
    return ir.Attr(name, attribute.type, attribute.value)


def schema_of(name: str, opset: int | None) -> Any | None:
    """What onnx says of an operator at an opset; None for an operator of somebody else.

    Raises:
        InputError: ONNX has no such operator there, and no domain says that it is another's.
    """
    domain, _, kind = name.rpartition("::")
    if domain not in ("", "ai.onnx") or opset is None:
        return None
    versions = history().get(kind, {})
    found = max((v for v in versions if v <= opset), default=None)
    if found is not None and not versions[found].deprecated:
        return versions[found]
    if versions and found is None:
        raise InputError(
            f"the operator {kind} came in opset {min(versions)}, the model is of opset {opset}",
            next_step=f"convert the model first: --set-opset {min(versions)} (tp.graph.set_opset)",
        )
    own = f"an operator of your own needs a domain: com.example::{kind}"
    what = f"ONNX has no operator {kind}" + (f" any more in opset {opset}" if versions else "")
    raise InputError(what, next_step=did_you_mean(kind, history(), own, more=own))


def attributes_of(given: Mapping[str, Any], schema: Any | None) -> dict[str, ir.Attr | None]:
    """Attributes from plain values, as YAML has them, of the kinds the operator wants; None stays None."""
    found: dict[str, ir.Attr | None] = {}
    for name, value in given.items():
        known = None if schema is None else schema.attributes.get(name)
        if schema is not None and known is None:
            hint = did_you_mean(name, schema.attributes, f"it has {', '.join(schema.attributes) or 'none'}")
            raise InputError(f"the operator {schema.name} has no attribute '{name}'", next_step=hint)
        found[name] = None if value is None else _attribute(name, value, known)
    return found


def _attribute(name: str, value: Any, known: Any | None) -> ir.Attr:
    if isinstance(value, ir.Attr):
        return with_name(name, value)
    kind = None if known is None else ir.AttributeType(int(known.type.value))
    try:
        return ir.convenience.convert_attribute(name, _plain(value, kind), kind)
    except (TypeError, ValueError, KeyError) as error:
        wanted = f"a value of kind {kind.name}" if kind is not None else "a number, a text, a list of them, or a tensor"
        raise InputError(f"attribute '{name}' cannot be {value!r}", next_step=f"give it {wanted}") from error


def _plain(value: Any, kind: ir.AttributeType | None) -> Any:
    """The value as the attribute's kind has it: ``to: float16`` is a number, ``alpha: 1`` is a float."""
    if kind == ir.AttributeType.INT and isinstance(value, str):
        return int(ir.DataType[_NUMBERS.get(value.lower(), value.upper())])
    if kind == ir.AttributeType.INT:
        if int(value) != value:
            raise ValueError(value)
        return int(value)
    if kind == ir.AttributeType.FLOAT:
        return float(value)
    if kind in (ir.AttributeType.INTS, ir.AttributeType.FLOATS):
        number = int if kind == ir.AttributeType.INTS else float
        return [number(v) for v in (value if isinstance(value, Sequence) else [value])]
    if kind == ir.AttributeType.TENSOR or isinstance(value, np.ndarray):
        return tensor_of(value)
    return value


def tensor_of(value: Any, dtype: ir.DataType | None = None) -> ir.TensorProtocol:
    """A tensor of numbers, lists or an array; Python's floats are float32 unless a dtype is given."""
    if isinstance(value, ir.TensorProtocol):
        return value
    try:
        array = np.asarray(value)
        array = array if dtype is None else array.astype(dtype.numpy())
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{str(value)[:60]} is no tensor of numbers", next_step="give numbers, or lists of one length"
        ) from error
    if dtype is None and array.dtype == np.float64 and not isinstance(value, np.ndarray | np.generic):
        array = array.astype(np.float32)
    return ir.tensor(array)


Schema = Any  # onnx.defs.OpSchema; onnx's own stubs do not name its parts


@functools.cache
def history() -> dict[str, dict[int, Schema]]:
    """Every version of every operator of the default domain: name, then the opset it came with."""
    found: dict[str, dict[int, Schema]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            found.setdefault(schema.name, {})[schema.since_version] = schema
    return found


@functools.cache
def schema_at(op_type: str, opset: int) -> Schema | None:
    """The operator as it stands at `opset`, None where it does not exist (or no longer does)."""
    versions = history().get(op_type, {})
    since = max((v for v in versions if v <= opset), default=None)
    return None if since is None or versions[since].deprecated else versions[since]


@functools.cache
def schema_even_if_deprecated(op_type: str, opset: int) -> Schema | None:
    """As `schema_at`, also for an operator that is deprecated there: models in the field still hold them."""
    versions = history().get(op_type, {})
    since = max((v for v in versions if v <= opset), default=None)
    return None if since is None else versions[since]


@functools.cache
def wording(op_type: str, since: int) -> tuple[str, ...]:
    """All the prose of a schema, letter case and white space aside: the same prose, the same meaning."""
    schema = history()[op_type][since]
    parts = [schema.doc or ""]
    parts += [f"{name} {attr.description}" for name, attr in sorted(schema.attributes.items())]
    parts += [f"{formal.name} {formal.description}" for formal in (*schema.inputs, *schema.outputs)]
    return tuple(" ".join(part.lower().split()) for part in parts)


def default_of(attr: Any) -> Any:
    """The default value of a schema's attribute, None when it has none."""
    proto = attr.default_value
    return onnx.helper.get_attribute_value(proto) if proto.name else None


def type_name(kind: ir.TypeProtocol | None) -> str | None:
    """How schemas write a type: ``tensor(float)``, ``seq(tensor(int64))``; None when it is not known."""
    if isinstance(kind, ir.SequenceType):
        return _wrapped("seq", kind.elem_type)
    if isinstance(kind, ir.OptionalType):
        return _wrapped("optional", kind.elem_type)
    if isinstance(kind, ir.SparseTensorType):
        return f"sparse_tensor({kind.dtype.name.lower()})"
    if isinstance(kind, ir.TensorType) and kind.dtype != ir.DataType.UNDEFINED:
        return f"tensor({kind.dtype.name.lower()})"
    return None


def _wrapped(outer: str, inner: Any) -> str | None:
    name = type_name(inner)
    return None if name is None else f"{outer}({name})"


def formal_at(formals: Any, index: int) -> Any:
    """The formal parameter an actual one at `index` belongs to; the last one may be variadic."""
    return formals[min(index, len(formals) - 1)]


@functools.cache
def _constraints(op_type: str, since: int) -> dict[str, frozenset[str]]:
    schema = history()[op_type][since]
    return {c.type_param_str: frozenset(c.allowed_type_strs) for c in schema.type_constraints}


def allowed_types(schema: Schema, formal: Any) -> frozenset[str]:
    """The types a formal parameter takes."""
    return _constraints(schema.name, schema.since_version).get(formal.type_str, frozenset({formal.type_str}))


def _is_variadic(formal: Any) -> bool:
    return bool(formal.option == onnx.defs.OpSchema.FormalParameterOption.Variadic)


def _is_optional(formal: Any) -> bool:
    return bool(formal.option == onnx.defs.OpSchema.FormalParameterOption.Optional)


def used_inputs(node: ir.Node) -> int:
    """How many inputs are given, not counting empty ones at the end."""
    return max((i + 1 for i, value in enumerate(node.inputs) if value is not None), default=0)


def check_counts(node: ir.Node, schema: Schema) -> None:
    """Refuses a node with more or fewer inputs and outputs than `schema` has room for."""
    inputs = used_inputs(node)
    if inputs > schema.max_input:
        raise Refusal(f"its input {inputs} came after opset {schema.since_version}")
    if inputs < schema.min_input:
        raise Refusal(f"opset {schema.since_version} wants {schema.min_input} inputs, it has {inputs}")
    if not schema.min_output <= len(node.outputs) <= schema.max_output:
        raise Refusal(f"opset {schema.since_version} has {schema.max_output} outputs, it has {len(node.outputs)}")
    for index, value in enumerate(node.inputs[:inputs]):
        formal = formal_at(schema.inputs, index)
        if value is None and not _is_optional(formal) and not _is_variadic(formal):
            raise Refusal(f"its input '{formal.name}' may not be left out in opset {schema.since_version}")


def check_attributes(node: ir.Node, schema: Schema) -> None:
    """Refuses attributes `schema` does not have, and the lack of those it requires."""
    for name in node.attributes:
        if name not in schema.attributes:
            raise Refusal(f"attribute '{name}' came after opset {schema.since_version}")
    for name, attr in schema.attributes.items():
        if attr.required and name not in node.attributes:
            raise Refusal(f"attribute '{name}' is required in opset {schema.since_version}")


def check_types(node: ir.Node, schema: Schema, *, before: Schema | None = None) -> None:
    """Refuses dtypes `schema` does not take.

    Args:
        node: the node to look at.
        schema: the operator it shall be.
        before: the operator it is. Where both take the same types, a type that is not known does no harm;
            without it unknown types are let pass.
    """
    bound: dict[str, str] = {}
    sides = ((node.inputs, schema.inputs, "inputs"), (node.outputs, schema.outputs, "outputs"))
    for values, formals, side in sides:
        for index, value in enumerate(values):
            if value is not None and len(formals):
                _check_type(value, schema, formal_at(formals, index), bound, _same(schema, before, side, index))


def _same(schema: Schema, before: Schema | None, side: str, index: int) -> bool:
    if before is None:
        return True
    then, now = getattr(before, side), getattr(schema, side)
    if index >= len(then) and not _is_variadic(formal_at(then, index)):
        return False
    old, new = formal_at(then, index), formal_at(now, index)
    return old.type_str == new.type_str and allowed_types(before, old) == allowed_types(schema, new)


def _check_type(value: ir.Value, schema: Schema, formal: Any, bound: dict[str, str], same: bool) -> None:
    name = type_name(value.type)
    if name is None:
        if same:
            return
        raise Refusal(f"the dtype of '{value.name}' is not known")
    if name not in allowed_types(schema, formal):
        raise Refusal(f"{name} for '{formal.name}' came after opset {schema.since_version}")
    if _is_variadic(formal) and not formal.is_homogeneous:
        return
    if bound.setdefault(formal.type_str, name) != name:
        raise Refusal(f"mixed types for '{formal.type_str}' came after opset {schema.since_version}")


def check(node: ir.Node, schema: Schema) -> None:
    """Refuses a node that `schema` does not describe: the last word after every conversion."""
    check_counts(node, schema)
    check_attributes(node, schema)
    check_types(node, schema)


def newest(domain: str) -> int:
    """The version to import of a domain: onnx's newest where it knows the domain, else 1."""
    known = [s.since_version for s in onnx.defs.get_all_schemas_with_history() if s.domain == domain]
    return max(known, default=1)
