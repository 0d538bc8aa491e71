"""ONNX's operators: their versions, types, and which engines have a kernel for them."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import Any, ClassVar

import onnx
import onnx.defs

from torchport.engines.registry import engine_names, find_engine
from torchport.results import Record

_KINDS = ("float32", "float16", "float64", "bfloat16", "int64", "int32", "int8", "uint8", "bool")
_ELEMENTS = {
    "float32": onnx.TensorProto.FLOAT,
    "float64": onnx.TensorProto.DOUBLE,
    **{k: getattr(onnx.TensorProto, k.upper()) for k in _KINDS if k not in ("float32", "float64")},
}


@dataclasses.dataclass(frozen=True)
class OnnxOperator(Record):
    """An ONNX operator, its history, and who has it.

    Attributes:
        versions: each version with what it changed.
        engines: for each engine the types it has a kernel for at the latest version it reads.
        torch: torch operators that end in it.
    """

    name: str
    domain: str
    versions: tuple[tuple[int, str], ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: tuple[str, ...]
    types: tuple[str, ...]
    engines: dict[str, tuple[str, ...]]
    torch: tuple[str, ...]

    json_properties = ("kind",)
    kind: ClassVar = "onnx"


@functools.cache
def _schemas() -> dict[str, list[Any]]:
    """Every version of every operator by name, oldest first."""
    found: dict[str, list[Any]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        name = schema.name if not schema.domain else f"{schema.domain}::{schema.name}"
        found.setdefault(name, []).append(schema)
    return {name: sorted(versions, key=lambda s: s.since_version) for name, versions in found.items()}


def names() -> tuple[str, ...]:
    return tuple(_schemas())


def introduced(name: str) -> int:
    versions = _schemas().get(name)
    return versions[0].since_version if versions else 1


def operator(name: str, torch: tuple[str, ...]) -> OnnxOperator:
    """All there is to know of an operator; `torch` has the torch operators that end in it."""
    versions = _schemas()[name]
    last = versions[-1]
    changes = [(versions[0].since_version, "introduced")]
    changes += [(new.since_version, _change(old, new)) for old, new in itertools.pairwise(versions)]
    return OnnxOperator(
        name=last.name,
        domain=last.domain or "ai.onnx",
        versions=tuple(changes),
        inputs=tuple(_parameter(p) for p in last.inputs),
        outputs=tuple(_parameter(p) for p in last.outputs),
        attributes=tuple(_attribute(a) for a in sorted(last.attributes.values(), key=lambda a: a.name)),
        types=tuple(f"{t.type_param_str}: {', '.join(map(_type, t.allowed_type_strs))}" for t in last.type_constraints),
        engines=_engines(versions),
        torch=torch,
    )


def _change(old: Any, new: Any) -> str:
    """What one version did, from the two schemas."""
    notes: list[str] = []
    if new.deprecated:
        return "deprecated"
    for word, before, after in (
        ("attribute", set(old.attributes), set(new.attributes)),
        ("input", {p.name for p in old.inputs}, {p.name for p in new.inputs}),
        ("output", {p.name for p in old.outputs}, {p.name for p in new.outputs}),
    ):
        notes += [f"+ {word} {name}" for name in sorted(after - before)]
        notes += [f"- {word} {name}" for name in sorted(before - after)]
    before, after = ({_type(t) for c in schema.type_constraints for t in c.allowed_type_strs} for schema in (old, new))
    if after - before:
        notes.append(f"+ types {', '.join(sorted(after - before))}")
    if before - after:
        notes.append(f"- types {', '.join(sorted(before - after))}")
    for name in sorted(set(old.attributes) & set(new.attributes)):
        then, now = (_default(s.attributes[name]) for s in (old, new))
        if then != now:
            notes.append(f"default of {name}: {then or 'none'} → {now or 'none'}")
    return "; ".join(notes) or "wording or shape rules"


def _type(text: str) -> str:
    return text.removeprefix("tensor(").removesuffix(")") if text.startswith("tensor(") else text


def _parameter(given: Any) -> str:
    kind = {"Optional": ", optional", "Variadic": ", any number"}.get(given.option.name, "")
    return f"{given.name}: {_type(given.type_str)}{kind}"


def _default(attribute: Any) -> str:
    value = onnx.helper.get_attribute_value(attribute.default_value) if attribute.default_value.name else None
    value = value.decode() if isinstance(value, bytes) else value
    return "" if value is None else str(value)


def _attribute(given: Any) -> str:
    default = _default(given)
    rest = "required" if given.required else f"default {default}" if default else "optional"
    return f"{given.name}: {given.type.name.lower()}, {rest}"


def _engines(versions: list[Any]) -> dict[str, tuple[str, ...]]:
    """Return the types that each engine has a kernel for; an engine that cannot tell is left out."""
    found: dict[str, tuple[str, ...]] = {}
    for name in engine_names():
        runs = find_engine(name).capabilities().runs
        if runs is not None:
            allowed = _kinds(versions[-1])
            found[name] = tuple(k for k in allowed if any(runs(_one_node(s, k)) for s in versions[::-1]))
    return found


def _kinds(schema: Any) -> list[str]:
    """The types of its first parameter, among those in use."""
    first = next(iter([*schema.inputs, *schema.outputs]), None)
    allowed = {
        _type(t)
        for c in schema.type_constraints
        if first and c.type_param_str == first.type_str
        for t in c.allowed_type_strs
    }
    names = {"float32": "float", "float64": "double"}
    return [k for k in _KINDS if names.get(k, k) in allowed]


def _one_node(schema: Any, kind: str) -> onnx.ModelProto:
    main = next(iter([*schema.inputs, *schema.outputs])).type_str
    given = [p for p in schema.inputs if p.option.name != "Optional"]
    inputs = [onnx.helper.make_tensor_value_info(p.name, _element(schema, p, main, kind), None) for p in given]
    attributes = {a.name: _some_value(a) for a in schema.attributes.values() if a.required}
    node = onnx.helper.make_node(
        schema.name, [p.name for p in given], [p.name for p in schema.outputs[:1]], domain=schema.domain, **attributes
    )
    outputs = [onnx.helper.make_empty_tensor_value_info(p.name) for p in schema.outputs[:1]]
    graph = onnx.helper.make_graph([node], "one", inputs, outputs)
    imports = [onnx.helper.make_opsetid(schema.domain, schema.since_version)]
    if schema.domain:
        imports.append(onnx.helper.make_opsetid("", 20))
    return onnx.helper.make_model(graph, opset_imports=imports, ir_version=10)


def _element(schema: Any, parameter: Any, main: str, kind: str) -> int:
    if parameter.type_str == main:
        return int(_ELEMENTS[kind])
    allowed = next(
        (c.allowed_type_strs for c in schema.type_constraints if c.type_param_str == parameter.type_str), None
    )
    kinds = [_type(t) for t in (allowed or [parameter.type_str])]
    for name, element in (("int64", 7), ("float", 1), ("bool", 9), ("uint8", 2), ("int32", 6)):
        if name in kinds:
            return element
    return int(onnx.TensorProto.FLOAT)


def _some_value(attribute: Any) -> Any:
    kind = attribute.type.name
    return {
        "INT": 1, "INTS": [1, 1], "FLOAT": 1.0, "FLOATS": [1.0], "STRING": "a", "STRINGS": ["a"],
        "GRAPH": onnx.helper.make_graph([], "none", [], []),
    }.get(kind, 1)  # fmt: skip
