"""Look operators up: what torch has, what ONNX has, and what leads from one to the other."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, ClassVar

import torch

from torchport.errors import OptionError, close_names
from torchport.operators import composition, definition, library, onnx_catalog, symbolic
from torchport.operators.onnx_catalog import OnnxOperator
from torchport.results import Record
from torchport.torch_compat import registries
from torchport.torch_compat.registries import Written

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
class TorchOperator(Record):
    """A torch operator and its ways to ONNX."""

    name: str
    schemas: tuple[str, ...]
    calls: tuple[str, ...]
    mappings: tuple[Mapping, ...]
    alternatives: tuple[str, ...] = ()

    json_properties = ("kind",)
    kind: ClassVar = "torch"


def find(text: str) -> list[str]:
    """Names of torch and ONNX operators with `text` in them, those that begin with it first.

    Example:
        >>> tp.operators.find("asinh")
        ['aten::asinh', 'Asinh', ...]
    """
    wanted = text.lower().strip()
    if not wanted:
        raise OptionError("what to look for is empty", next_step="give a part of an operator's name")
    names = [*_torch_names(), *onnx_catalog.names()]
    found = [n for n in names if wanted in n.lower()]
    return sorted(found, key=lambda n: (_own(n) != wanted, not _own(n).startswith(wanted), len(n), n))


def show(name: str) -> TorchOperator | OnnxOperator:
    """All there is to know of one operator: ``aten::asinh``, ``asinh``, ``Resize``, ``com.microsoft::Gelu``.

    Raises:
        OptionError: there is none of that name; the next step has the closest ones.
    """
    given = name.strip()
    if given in onnx_catalog.names():
        return _onnx_operator(given)
    own = given.replace("torch.ops.", "").replace(".", "::", 1) if "::" not in given and "." in given else given
    for known in (own, f"aten::{own}", own.partition(".")[0], f"aten::{own.partition('.')[0]}"):
        if "::" in known and registries.overloads(known.partition(".")[0]):
            return _torch_operator(known.partition(".")[0])
    for known in onnx_catalog.names():
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
    """The ways of one overload, ``torch.ops.aten.add.Tensor`` say, first the one that most calls take."""
    name, overload = registries.schema(operator).name, registries.schema(operator).overload_name or "default"
    return [m for m in _mappings(name) if m.overload in (overload, "any")]


def alternatives(name: str) -> tuple[str, ...]:
    """Mapped operators of the most similar names."""
    own = _own(name)
    mapped = [n for n in _torch_names() if n != name and _is_plain(n)]
    close = close_names(own, dict.fromkeys(map(_own, mapped)), most=8, cutoff=0.6)
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
    schemas = tuple(str(registries.schema(o)) for o in registries.overloads(name).values())
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
    composed = {op: f for op, f in composition.compositions().items() if registries.schema(op).name == name}
    for operator, function in composed.items():
        where = registries.written(function).where
        found.append(Mapping(registries.schema(operator).overload_name or "default", _MODERN, "composed", where=where))
    for since, function in symbolic.registered(name).items():
        one = registries.written(function, since)
        found += [
            Mapping(o, (*_MODERN, "script", "trace"), "direct", one.onnx, since, one.where)
            for o in registries.overloads(name)
        ]
    own = definition.defined().get(name)
    if own is not None:
        how = "composed" if own.node_name is None and own.lowering is None else "direct"
        found.append(Mapping("default", _MODERN, how, (own.node_name,) if own.node_name else ()))
    return (*found, *_shipped(name))


@functools.cache
def _shipped(name: str) -> tuple[Mapping, ...]:
    found: list[Mapping] = []
    _, composed = _ours()
    partial = {op for op, function in library.compositions().items() if composition.is_partial(function)}
    scripted = registries.script(name)
    for overload, operator in registries.overloads(name).items():
        if overload == "out" or overload.endswith("_out"):
            continue
        composes = composed.get(operator)
        if composes is None or operator in partial:
            found += _translated(name, overload, operator, scripted)
        if composes is not None:
            found.append(Mapping(overload, _MODERN, "composed", where=composes.where))
    if scripted is not None:
        found.append(Mapping("any", ("script", "trace"), "direct", scripted.onnx, scripted.since, scripted.where))
    return tuple(found)


def _translated(name: str, overload: str, operator: Any, scripted: Written | None) -> Iterator[Mapping]:
    """Return the mappings of an overload without compositions: our translation, torch's, or torch's decomposition."""
    ours, _ = _ours()
    if operator in ours:
        yield _mapping(overload, _MODERN, ours[operator], scripted)
    elif registries.modern(f"{name}.{overload}"):
        for one in registries.modern(f"{name}.{overload}"):
            yield _mapping(overload, _MODERN, one, scripted)
    elif registries.is_decomposed(operator):
        yield Mapping(overload, _MODERN, "decomposed")


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
    newest = max((onnx_catalog.introduced(name) for name in written.onnx), default=0)
    since = max(newest, scripted.since if scripted is not None else 0)
    return Mapping(overload, routes, "direct", written.onnx, since or None, written.where)


def _onnx_operator(name: str) -> OnnxOperator:
    return onnx_catalog.operator(name, tuple(_torch_users(name)) if "::" not in name else ())


def _torch_users(name: str) -> Iterator[str]:
    """aten operators one of whose mappings ends in an ONNX operator."""
    ours, composed = _ours()
    written = [
        (str(registries.schema(op).name), w)
        for table in (ours, composed)
        for op, w in table.items()
        if registries.is_overload(op)
    ]
    for key in registries.modern_names():
        written += [(key.partition(".")[0], w) for w in registries.modern(key)]
    yield from sorted({own for own, w in written if name in w.onnx and own.startswith("aten::")})


def closest(name: str) -> list[str]:
    """The operators of the most similar names, torch's and ONNX's; those in place only for a name that is."""
    ours = [n for n in _torch_names() if n.startswith("aten::") and (name.endswith("_") or not n.endswith("_"))]
    by_own: dict[str, list[str]] = {}
    for one in (*ours, *onnx_catalog.names()):
        by_own.setdefault(_own(one), []).append(one)
    return [one for close in close_names(_own(name), by_own, cutoff=0.6) for one in by_own[close]]
