"""One node, tensor or module of a model with its neighbors, and the statistics of a weight."""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath

import numpy as np
import onnx_ir as ir

from torchport.errors import InputError, OptionError, close_names
from torchport.files.onnx_files import ModelLike
from torchport.inspection.describe import opened, reading, weight_tensor
from torchport.irtools.metadata import module_of, origin_of
from torchport.irtools.names import check_owned, name_of
from torchport.irtools.shapes import Shapes
from torchport.irtools.traversal import all_nodes, all_values, graphs, subgraphs, used_values
from torchport.irtools.types import dtype_name, operator_name, type_text
from torchport.results import Origin, Record
from torchport.terminal import clip, human_bytes, shape_text, table, wrapped

# One node, tensor or module of a model, with what stands around it.
#
# >>> print(look(model, node="node_conv2d"))
# >>> print(look(model, tensor="fc.weight"))      # reads this one weight, for its statistics
# >>> print(look(model, module="encoder.layers.0"))

_LONGEST_LINE = 200
_LONGEST_VALUE = 120


@dataclasses.dataclass(frozen=True)
class Neighbor:
    """A value beside a node: its name, type, and the nodes at its other end."""

    name: str
    type: str
    nodes: tuple[str, ...] = ()

    def row(self, side: str) -> tuple[str, ...]:
        few = ", ".join(self.nodes[:2]) + (f" and {len(self.nodes) - 2} more" if len(self.nodes) > 2 else "")
        return side, self.name or "(left out)", self.type, few


@dataclasses.dataclass(frozen=True)
class NodeView(Record):
    """A node: what it is, where it comes from, what it reads and who reads it."""

    name: str
    operator: str
    attributes: Mapping[str, str]
    inputs: tuple[Neighbor, ...]
    outputs: tuple[Neighbor, ...]
    origin: Origin
    line: str = ""
    inside: str = ""

    def __str__(self) -> str:
        lines = [clip(f"node '{self.name}': {self.operator}" + (f", inside {self.inside}" if self.inside else ""))]
        lines += _origin_lines(self.origin, self.line)
        given = [clip(f"{key}={value}", _LONGEST_VALUE) for key, value in self.attributes.items()]
        lines += [wrapped("attributes", ", ".join(given))] if given else []
        rows = [n.row("in") for n in self.inputs] + [n.row("out") for n in self.outputs]
        return "\n".join(lines + table(rows))


@dataclasses.dataclass(frozen=True)
class TensorView(Record):
    """A value: what it is, who makes it, who reads it; for a weight its statistics."""

    name: str
    type: str
    kind: str
    producer: str
    consumers: tuple[str, ...]
    bytes: int | None = None
    file: str = ""
    statistics: Statistics | None = None
    origin: Origin = dataclasses.field(default_factory=Origin)
    line: str = ""

    def __str__(self) -> str:
        size = f", {human_bytes(self.bytes)}" if self.bytes is not None else ""
        lines = [clip(f"{self.kind} '{self.name}': {self.type}{size}" + (f" in {self.file}" if self.file else ""))]
        lines += _origin_lines(self.origin, self.line)
        lines += [wrapped("made by", self.producer)] if self.producer else []
        lines += [wrapped("read by", name) for name in self.consumers[:10]] or [
            wrapped("read by", "the caller" if self.kind == "output" else "nobody")
        ]
        lines += [wrapped("", f"and {len(self.consumers) - 10} more")] if len(self.consumers) > 10 else []
        lines += [wrapped("values", str(self.statistics))] if self.statistics is not None else []
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class ModuleView(Record):
    """A module's nodes, the values that go in and come out, and the weights it reads."""

    path: str
    nodes: tuple[str, ...]
    operators: Mapping[str, int]
    inputs: tuple[Neighbor, ...]
    outputs: tuple[Neighbor, ...]
    weights: tuple[Neighbor, ...]
    children: tuple[str, ...]
    sources: tuple[str, ...]

    def __str__(self) -> str:
        counts = ", ".join(f"{n} {name}" for name, n in self.operators.items())
        lines = [clip(f"module '{self.path}': {len(self.nodes)} nodes"), wrapped("operators", counts)]
        lines += [wrapped("modules", ", ".join(self.children))] if self.children else []
        lines += [wrapped("python", _short(source)) for source in self.sources[:5]]
        sides = (("in", self.inputs), ("out", self.outputs), ("weight", self.weights))
        rows = [n.row(side) for side, all_of_it in sides for n in all_of_it[:10]]
        more = [f"  and {len(rest) - 10} more of '{side}'" for side, rest in sides if len(rest) > 10]
        return "\n".join(lines + table(rows) + more)


View = NodeView | TensorView | ModuleView


def look(
    model: ModelLike,
    *,
    node: str | ir.Node | None = None,
    tensor: str | ir.Value | None = None,
    module: str | None = None,
) -> View:
    """One node, tensor or module with its neighbors. Of all weights, only the tensor's own is read.

    Args:
        model: a model or a file.
        node: a node or its name, or the name of a value that it makes.
        tensor: a tensor or its name.
        module: the path of a module of the PyTorch model.

    Raises:
        InputError: there is none of that name; the message has the close ones.
        OptionError: not exactly one of the three was given.
    """
    if sum(name is not None for name in (node, tensor, module)) != 1:
        raise OptionError("give one of node, tensor and module", next_step='look(model, node="conv1")')
    with reading(model):
        loaded, path = opened(model)
        check_owned(loaded, *(one for one in (node, tensor) if isinstance(one, (ir.Node, ir.Value))))
        if node is not None:
            return _node_view(loaded, node, path)
        if tensor is not None:
            return _tensor_view(loaded, tensor, path)
        return _module_view(loaded, str(module), path)


def missing(kind: str, name: str, known: Iterable[str], path: str) -> InputError:
    """The error for a name that is not there, with the names close to it."""
    names = [n for n in dict.fromkeys(known) if n]
    within = [n for n in names if name and name.lower() in n.lower()]
    close = list(dict.fromkeys([*close_names(name, names[:20_000]), *within[:3]]))[:4]
    some = f"its {kind}s start: {', '.join(names[:3])}" if names else f"it has no named {kind}s"
    return InputError(
        f"there is no {kind} '{name}' in the model",
        where=path or None,
        next_step=f"close to it: {', '.join(close)}" if close else some,
    )


def _node_view(model: ir.Model, name: str | ir.Node, path: str) -> NodeView:
    nodes = list(all_nodes(model))
    found = [n for n in nodes if n is name or n.name == name]
    found = found or [n for n in nodes if any(v.name == name for v in n.outputs)]
    if not found:
        raise missing("node", str(name), (n.name or "" for n in nodes), path)
    one, readers, typed = found[0], _readers(nodes), _Types(model)
    origin = origin_of(one)
    return NodeView(
        name=name_of(one),
        operator=operator_name(one),
        attributes={key: attribute_text(given) for key, given in one.attributes.items()},
        inputs=tuple(_input(value, typed) for value in one.inputs),
        outputs=tuple(Neighbor(str(v.name or ""), typed(v), readers.get(id(v), ())) for v in one.outputs),
        origin=origin,
        line=source_line(origin.source),
        inside=_inside(one, nodes),
    )


def _tensor_view(model: ir.Model, name: str | ir.Value, path: str) -> TensorView:
    nodes = list(all_nodes(model))
    values = [v for v in all_values(model.graph) if v.name]
    value = next((v for v in values if v is name or v.name == name), None)
    if value is None:
        raise missing("tensor", str(name), (str(v.name) for v in values), path)
    producer = value.producer()
    held = weight_tensor(value)
    origin = origin_of(producer) if producer is not None else Origin()
    return TensorView(
        name=str(value.name),
        type=_Types(model)(value),
        kind=_kind(value, held),
        producer=_named(producer) if producer is not None else "",
        consumers=_readers(nodes).get(id(value), ()),
        bytes=held.nbytes if held is not None and held.dtype != ir.DataType.STRING else None,
        file=str(held.location) if isinstance(held, ir.ExternalTensor) else "",
        statistics=statistics(held) if held is not None else None,
        origin=origin,
        line=source_line(origin.source),
    )


def _module_view(model: ir.Model, path: str, file: str) -> ModuleView:
    nodes = list(all_nodes(model))
    inside = [n for n in nodes if _within(module_of(n), path)]
    if not inside:
        raise missing("module", path, (above for n in nodes for above in _parents(module_of(n))), file)
    own, readers, typed = {id(n) for n in inside}, _readers(nodes), _Types(model)
    taken = {id(v): v for n in inside for v in n.inputs if v is not None and id(v.producer()) not in own}
    outer = {id(v) for n in nodes if id(n) not in own for v in used_values(n)}
    outer |= {id(v) for graph in graphs(model) for v in graph.outputs}
    given = [v for n in inside for v in n.outputs if id(v) in outer]
    depth = len(path.split(".")) if path else 0
    children = [".".join(module_of(n).split(".")[: depth + 1]) for n in inside if module_of(n) not in ("", path)]
    return ModuleView(
        path=path,
        nodes=tuple(name_of(n) or n.op_type for n in inside),
        operators=dict(collections.Counter(map(operator_name, inside)).most_common()),
        inputs=tuple(_input(v, typed) for v in taken.values() if v.const_value is None),
        outputs=tuple(Neighbor(str(v.name), typed(v), readers.get(id(v), ())) for v in given),
        weights=tuple(Neighbor(str(v.name), typed(v)) for v in taken.values() if v.const_value is not None),
        children=tuple(dict.fromkeys(children)),
        sources=tuple(dict.fromkeys(filter(None, (origin_of(n).source for n in inside)))),
    )


def _readers(nodes: list[ir.Node]) -> dict[int, tuple[str, ...]]:
    """Who reads each value, by the value's id; bodies read for themselves."""
    found: dict[int, list[str]] = {}
    for node in nodes:
        for value in dict.fromkeys(v for v in node.inputs if v is not None):
            found.setdefault(id(value), []).append(_named(node))
    return {key: tuple(names) for key, names in found.items()}


def _named(node: ir.Node) -> str:
    return f"{name_of(node) or '(no name)'} ({operator_name(node)})"


def _input(value: ir.Value | None, typed: _Types) -> Neighbor:
    if value is None:
        return Neighbor("", "")
    producer = value.producer()
    weight = "weight" if value.const_value is not None else "input"
    return Neighbor(str(value.name), typed(value), (_named(producer) if producer is not None else weight,))


def _kind(value: ir.Value, held: ir.TensorProtocol | None) -> str:
    if held is not None:
        return "weight"
    if value.is_graph_output():
        return "output"
    return "input" if value.is_graph_input() else "tensor"


class _Types:
    """What to say of a value's type: as stated, else as inferred."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model

    @functools.cached_property
    def _shapes(self) -> Shapes:
        return Shapes(self._model)

    def __call__(self, value: ir.Value) -> str:
        if value.const_value is not None:
            return shape_text(dtype_name(value.const_value.dtype), tuple(value.const_value.shape))
        if value.type is not None and value.shape is not None:
            stated = [d if isinstance(d, int) else d.value for d in value.shape]
            return shape_text(type_text(value.type), stated)
        kind = type_text(value.type) if value.type is not None else dtype_name(self._shapes.dtype(value))
        return shape_text(kind, self._shapes.of(value))


def attribute_text(given: ir.Attr) -> str:
    if given.is_ref():
        return f"the function's '{given.ref_attr_name}'"
    if given.type == ir.AttributeType.TENSOR:
        tensor = given.as_tensor()
        few = f" {tensor.numpy().tolist()}" if tensor.size <= 8 else ""
        return shape_text(dtype_name(tensor.dtype), tuple(tensor.shape)) + few
    if given.type == ir.AttributeType.GRAPH:
        return f"a graph of {len(given.as_graph())} nodes"
    if given.type == ir.AttributeType.GRAPHS:
        return f"{len(given.as_graphs())} graphs"
    return str(list(given.value) if isinstance(given.value, tuple) else given.value).replace(", ", ",")


def _origin_lines(origin: Origin, line: str) -> list[str]:
    lines = [wrapped("python", _short(origin.source))] if origin.source else []
    lines += [wrapped("", clip(line, 66))] if line else []
    lines += [wrapped("module", origin.module)] if origin.module else []
    return lines + ([wrapped("torch", origin.operator)] if origin.operator else [])


def _short(source: str) -> str:
    """Of an installed package, the path inside it."""
    return clip(source.rpartition("site-packages/")[2], 66)


def source_line(source: str) -> str:
    """The Python line itself, if the file is here. A model may name any file: only a .py below this folder is read."""
    found = re.fullmatch(r"(.+\.py):(\d+)", source)
    if found is None or PurePath(found[1]).is_absolute() or ".." in PurePath(found[1]).parts:
        return ""
    try:
        path = Path(found[1])
        if not path.is_file() or path.stat().st_size > 10**7:
            return ""
        lines = path.read_text(errors="replace").splitlines()
        return lines[int(found[2]) - 1].strip()[:_LONGEST_LINE]
    except (OSError, IndexError, ValueError):
        return ""


def _inside(node: ir.Node, nodes: list[ir.Node]) -> str:
    """The node whose branch or body it is in."""
    graph = node.graph
    return next((_named(outer) for outer in nodes if any(g is graph for g in subgraphs(outer))), "")


def _within(module: str, path: str) -> bool:
    return not path or module == path or module.startswith(path + ".")


def _parents(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[:n]) for n in range(1, len(parts) + 1)]


# What the numbers of one weight are like, read piece by piece: a mapped weight never fills the memory.

_CHUNK = 1 << 20


@dataclasses.dataclass(frozen=True)
class Statistics:
    """Of the finite numbers of a tensor; NaN and infinite ones are counted."""

    min: float
    max: float
    mean: float
    std: float
    zeros: int
    nan: int
    inf: int

    def __str__(self) -> str:
        odd = f", {self.nan:,} NaN, {self.inf:,} infinite" if self.nan or self.inf else ", all finite"
        return (
            f"min {self.min:.4g}, max {self.max:.4g}, mean {self.mean:.4g}, std {self.std:.4g}, "
            f"{self.zeros:,} zeros{odd}"
        )


def statistics(tensor: ir.TensorProtocol) -> Statistics | None:
    """Reads the tensor; None for texts and complex numbers, and where there is nothing to read."""
    if tensor.dtype in (ir.DataType.STRING, ir.DataType.COMPLEX64, ir.DataType.COMPLEX128) or not tensor.size:
        return None
    values = np.asarray(tensor.numpy()).reshape(-1)
    count, mean, squares = 0, 0.0, 0.0
    low, high, zeros, nan, inf = math.inf, -math.inf, 0, 0, 0
    for start in range(0, values.size, _CHUNK):
        piece = values[start : start + _CHUNK].astype(np.float64)
        nan += int(np.isnan(piece).sum())
        inf += int(np.isinf(piece).sum())
        piece = piece[np.isfinite(piece)]
        if not piece.size:
            continue
        zeros += int((piece == 0).sum())
        low, high = min(low, float(piece.min())), max(high, float(piece.max()))
        # two parts' means and squared deviations joined, after Chan, Golub and LeVeque
        shift, total = float(piece.mean()) - mean, count + piece.size
        squares += float(((piece - piece.mean()) ** 2).sum()) + shift**2 * count * piece.size / total
        mean += shift * piece.size / total
        count = total
    if not count:
        return Statistics(math.nan, math.nan, math.nan, math.nan, zeros, nan, inf)
    return Statistics(low, high, mean, math.sqrt(squares / count), zeros, nan, inf)
