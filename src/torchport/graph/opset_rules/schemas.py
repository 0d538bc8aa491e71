"""What the installed onnx says an operator is at an opset, and whether a node fits it."""

from __future__ import annotations

import functools
from typing import Any

import onnx
import onnx_ir as ir

from torchport.graph.opset_rules.reading import Refusal

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
