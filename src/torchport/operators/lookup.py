"""Look operators up: what torch has, what ONNX has, and what leads from one to the other."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import itertools
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

import onnx
import onnx.defs
import torch

from torchport.errors import OptionError
from torchport.operators import composing, library, registries, symbolic
from torchport.operators.registries import Written

_SPACES = {"linalg_": torch.linalg, "special_": torch.special, "fft_": torch.fft}
# where the Python name differs from the operator's
_CALLS = {
    "upsample_nearest1d": 'torch.nn.functional.interpolate(mode="nearest")',
    "upsample_nearest2d": 'torch.nn.functional.interpolate(mode="nearest")',
    "upsample_nearest3d": 'torch.nn.functional.interpolate(mode="nearest")',
    "upsample_linear1d": 'torch.nn.functional.interpolate(mode="linear")',
    "upsample_bilinear2d": 'torch.nn.functional.interpolate(mode="bilinear")',
    "upsample_bicubic2d": 'torch.nn.functional.interpolate(mode="bicubic")',
    "upsample_trilinear3d": 'torch.nn.functional.interpolate(mode="trilinear")',
    "_softmax": "torch.softmax",
    "_log_softmax": "torch.log_softmax",
    "native_layer_norm": "torch.nn.functional.layer_norm",
    "native_group_norm": "torch.nn.functional.group_norm",
    "native_batch_norm": "torch.nn.functional.batch_norm",
    "convolution": "torch.nn.functional.conv2d",
}
_MODERN = ("export", "rewrite")
_KINDS = ("float32", "float16", "float64", "bfloat16", "int64", "int32", "int8", "uint8", "bool")
_ELEMENTS = {
    "float32": onnx.TensorProto.FLOAT,
    "float64": onnx.TensorProto.DOUBLE,
    **{k: getattr(onnx.TensorProto, k.upper()) for k in _KINDS if k not in ("float32", "float64")},
}


@dataclasses.dataclass(frozen=True)
class Mapping:
    """How one exporter gets an overload to ONNX.

    Attributes:
        overload: the overload of the operator.
        routes: the routes that use it.
        how: ``direct``, ``composed`` (of other torch operators, by torchport) or ``decomposed`` (by torch).
        onnx: the ONNX operators it ends in, where they can be told.
        since: the lowest opset, where it can be told.
        where: the file and line that says so.
    """

    overload: str
    routes: tuple[str, ...]
    how: str
    onnx: tuple[str, ...] = ()
    since: int | None = None
    where: str = ""


@dataclasses.dataclass(frozen=True)
class TorchOperator:
    """A torch operator and its ways to ONNX."""

    name: str
    schemas: tuple[str, ...]
    calls: tuple[str, ...]
    mappings: tuple[Mapping, ...]
    alternatives: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"kind": "torch", **dataclasses.asdict(self)}


@dataclasses.dataclass(frozen=True)
class OnnxOperator:
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

    def to_json(self) -> dict[str, Any]:
        return {"kind": "onnx", **dataclasses.asdict(self)}


def find(text: str) -> list[str]:
    """Names of torch and ONNX operators with `text` in them, those that begin with it first.

    Example:
        >>> tp.operators.find("asinh")
        ['aten::asinh', 'Asinh', ...]
    """
    wanted = text.lower().strip()
    if not wanted:
        raise OptionError("what to look for is empty", next_step="give a part of an operator's name")
    names = [*_torch_names(), *_onnx_names()]
    found = [n for n in names if wanted in n.lower()]
    return sorted(found, key=lambda n: (_own(n) != wanted, not _own(n).startswith(wanted), len(n), n))


def show(name: str) -> TorchOperator | OnnxOperator:
    """All there is to know of one operator: ``aten::asinh``, ``asinh``, ``Resize``, ``com.microsoft::Gelu``.

    Raises:
        OptionError: there is none of that name; the next step has the closest ones.
    """
    given = name.strip()
    if given in _onnx_names():
        return _onnx_operator(given)
    own = given.replace("torch.ops.", "").replace(".", "::", 1) if "::" not in given and "." in given else given
    for known in (own, f"aten::{own}", own.partition(".")[0], f"aten::{own.partition('.')[0]}"):
        if "::" in known and registries.overloads(known.partition(".")[0]):
            return _torch_operator(known.partition(".")[0])
    for known in _onnx_names():
        if known.lower() == given.lower():
            return _onnx_operator(known)
    close = closest(given)
    raise OptionError(
        f"there is no operator '{name}' in torch or ONNX",
        next_step=f"did you mean {', '.join(close)}?" if close else "`torchport ops find` looks for a part of a name",
    )


def aten_names() -> list[str]:
    """aten operators that are neither private nor in place, and no gradients."""
    return [n for n in _torch_names() if n.startswith("aten::") and _is_plain(n)]


def missing() -> list[str]:
    """Those of them that no route maps."""
    return [n for n in aten_names() if not _mappings(n)]


def mappings_of(operator: Any) -> list[Mapping]:
    """The ways of one overload, ``torch.ops.aten.add.Tensor`` say, the one that is taken first."""
    name, overload = operator._schema.name, operator._schema.overload_name or "default"
    return [m for m in _mappings(name) if m.overload in (overload, "any")]


def alternatives(name: str) -> tuple[str, ...]:
    """Mapped operators of the most similar names."""
    own = _own(name)
    mapped = [n for n in _torch_names() if n != name and _is_plain(n)]
    close = difflib.get_close_matches(own, [_own(n) for n in mapped], n=8, cutoff=0.6)
    return tuple(f"aten::{c}" for c in close if _mappings(f"aten::{c}"))[:4]


# --- torch ------------------------------------------------------------------------------------------------------------


def _own(name: str) -> str:
    return name.rpartition("::")[2].lower()


@functools.cache
def _torch_names() -> tuple[str, ...]:
    return registries.operator_names()


def _is_plain(name: str) -> bool:
    """Not private, not in place, no gradient."""
    own = _own(name)
    return not own.startswith("_") and not own.endswith(("_", "_backward", "_out", "_copy")) and "backward" not in own


def _torch_operator(name: str) -> TorchOperator:
    schemas = tuple(str(o._schema) for o in registries.overloads(name).values())
    ways = _mappings(name)
    return TorchOperator(name, schemas, tuple(_calls(name)), ways, () if ways else alternatives(name))


def _calls(name: str) -> Iterator[str]:
    """How Python calls it."""
    space, _, own = name.partition("::")
    if space != "aten":
        yield f"torch.ops.{space}.{own}"
        return
    if own in _CALLS:
        yield _CALLS[own]
    for prefix, module in _SPACES.items():
        if own.startswith(prefix) and hasattr(module, own.removeprefix(prefix)):
            yield f"{module.__name__}.{own.removeprefix(prefix)}"
    for place, where in (("torch", torch), ("torch.nn.functional", torch.nn.functional), ("Tensor", torch.Tensor)):
        if hasattr(where, own):
            yield f"{place}.{own}"


def _mappings(name: str) -> tuple[Mapping, ...]:
    """The user's first."""
    found: list[Mapping] = []
    composed = {op: f for op, f in composing.compositions().items() if op._schema.name == name}
    for operator, function in composed.items():
        where = registries.written(function).where
        found.append(Mapping(operator._schema.overload_name or "default", _MODERN, "composed", where=where))
    for since, function in symbolic.registered(name).items():
        one = registries.written(function, since)
        found += [
            Mapping(o, (*_MODERN, "script", "trace"), "direct", one.onnx, since, one.where)
            for o in registries.overloads(name)
        ]
    return (*found, *_shipped(name))


@functools.cache
def _shipped(name: str) -> tuple[Mapping, ...]:
    found: list[Mapping] = []
    ours, composed = _ours()
    scripted = registries.script(name)
    for overload, operator in registries.overloads(name).items():
        if overload == "out" or overload.endswith("_out"):
            continue
        if operator in composed:
            found.append(Mapping(overload, _MODERN, "composed", where=composed[operator].where))
        elif operator in ours:
            found.append(_mapping(overload, _MODERN, ours[operator], scripted))
        elif registries.modern(f"{name}.{overload}"):
            for one in registries.modern(f"{name}.{overload}"):
                found.append(_mapping(overload, _MODERN, one, scripted))
        elif registries.is_decomposed(operator):
            found.append(Mapping(overload, _MODERN, "decomposed"))
    if scripted is not None:
        found.append(Mapping("any", ("script", "trace"), "direct", scripted.onnx, scripted.since, scripted.where))
    return tuple(found)


@functools.cache
def _ours() -> tuple[dict[Any, Written], dict[Any, Written]]:
    tables = (library.translations(), library.compositions())
    ours, composed = ({op: registries.written(f) for op, f in table.items()} for table in tables)
    return ours, composed


def _mapping(overload: str, routes: tuple[str, ...], written: Written, scripted: Written | None) -> Mapping:
    """From the opset that has all its ONNX operators: what is written for a newer one is converted down.

    An operator may have been there without what is needed of it (Resize in 10, without cubic); the TorchScript exporter
    knows that, where it has the same.
    """
    newest = max((_introduced(name) for name in written.onnx), default=0)
    since = max(newest, scripted.since if scripted is not None else 0)
    return Mapping(overload, routes, "direct", written.onnx, since or None, written.where)


# --- ONNX -------------------------------------------------------------------------------------------------------------


@functools.cache
def _schemas() -> dict[str, list[Any]]:
    """Every version of every operator by name, oldest first."""
    found: dict[str, list[Any]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        name = schema.name if not schema.domain else f"{schema.domain}::{schema.name}"
        found.setdefault(name, []).append(schema)
    return {name: sorted(versions, key=lambda s: s.since_version) for name, versions in found.items()}


def _onnx_names() -> tuple[str, ...]:
    return tuple(_schemas())


def _introduced(name: str) -> int:
    versions = _schemas().get(name)
    return versions[0].since_version if versions else 1


def _onnx_operator(name: str) -> OnnxOperator:
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
        torch=tuple(_torch_users(last.name)) if not last.domain else (),
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


def _torch_users(name: str) -> Iterator[str]:
    """aten operators one of whose mappings ends in an ONNX operator."""
    ours, composed = _ours()
    written = [
        (str(op._schema.name), w) for table in (ours, composed) for op, w in table.items() if hasattr(op, "_schema")
    ]
    for key in registries.modern_names():
        written += [(key.partition(".")[0], w) for w in registries.modern(key)]
    yield from sorted({own for own, w in written if name in w.onnx and own.startswith("aten::")})


def _engines(versions: list[Any]) -> dict[str, tuple[str, ...]]:
    """Each engine is asked with a model of the one node; an engine that cannot be asked is left out."""
    found: dict[str, tuple[str, ...]] = {}
    for entry in entry_points(group="torchport.engines"):
        has_kernels = getattr(sys.modules[entry.load().__module__], "has_kernels", None)
        if has_kernels is not None:
            allowed = _kinds(versions[-1])
            found[entry.name] = tuple(k for k in allowed if any(has_kernels(_one_node(s, k)) for s in versions[::-1]))
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


def closest(name: str) -> list[str]:
    """The operators of the most similar names."""
    names = [*_torch_names(), *_onnx_names()]
    by_own = {_own(n): n for n in names}
    return [by_own[c] for c in difflib.get_close_matches(_own(name), list(by_own), n=3, cutoff=0.6)]
