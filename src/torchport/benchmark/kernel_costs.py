"""What the kernels of a profile compute and move, how near that is to the machine's limits, and whose time it is.

A fused kernel has one time and several nodes. The time is divided among them as the limits say that they would take it:
by multiply-adds and by bytes. So a convolution with an activation behind it gets nearly all of it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from torchport.benchmark.profile_report import Limits, LineTime, ModuleTime, NodeTime, OperatorTime
from torchport.engines.profiling import Kernel, KernelTimes
from torchport.inspection.cost import UnknownShapeError, bytes_moved, multiply_adds
from torchport.irtools.dims import Dims, evaluated, names_in
from torchport.irtools.metadata import folded_into, origin_of
from torchport.irtools.names import name_of
from torchport.irtools.shapes import Shapes
from torchport.irtools.types import operator_name
from torchport.results import Origin
from torchport.tensors import Array

_TELLING = 2e-6  # seconds of a call below which an engine's clock, of whole microseconds, tells no rate
_LEAST = 1e-9  # seconds: a node that computes and moves nothing has a part too
_TORCH = "torch/fx/"
_VIEWS = ("Reshape", "Squeeze", "Unsqueeze")  # an engine that inserts one copies nothing
_SLOWED = (0.75, 1.0)  # what is left of a kernel's time in a run that does not count; more is the machine's doing
_INTEGERS = ("int8", "uint8", "i8", "u8")


def origin_in(node: ir.Node) -> Origin:
    """Return where the most of a node's work comes from.

    Of a convolution with a normalization folded into it that is the convolution, though the node's own entry is that of
    the normalization, whose result it gives.
    """
    alike = (origin for operator, origin in folded_into(node) if operator == node.op_type)
    return _plain(next(alike, origin_of(node)))


def origins_in(node: ir.Node) -> tuple[Origin, ...]:
    """Return where a node comes from, and all that was folded into it."""
    return tuple(dict.fromkeys([origin_in(node), _plain(origin_of(node)), *(_plain(o) for _, o in folded_into(node))]))


def _plain(origin: Origin) -> Origin:
    """Return an origin; a line inside torch, which torch names for sizes that it asks for, is none."""
    return dataclasses.replace(origin, source="") if origin.source.startswith(_TORCH) else origin


def operators_in(node: ir.Node) -> tuple[str, ...]:
    """Return the operators that a node computes: its own, or those that the exporter folded into it, its own first."""
    operators = [operator for operator, _ in folded_into(node)]
    if node.op_type not in operators:
        return (node.op_type,)
    return tuple(sorted(operators, key=lambda operator: operator != node.op_type))


@dataclasses.dataclass(frozen=True)
class Part:
    """The part of a kernel that one node has.

    Attributes:
        kernel: its position.
        node: None where nobody knows.
        seconds: of a run.
        multiply_adds: None where a shape is not known.
        bytes_moved: None where a shape is not known.
        at_full_rate: the seconds that the multiply-adds take at the machine's limit; None if it is not known.
        at_full_bandwidth: the seconds that the bytes take; None if it is not known.
    """

    kernel: int
    node: ir.Node | None
    seconds: float
    multiply_adds: int | None
    bytes_moved: int | None
    at_full_rate: float | None
    at_full_bandwidth: float | None

    @property
    def origin(self) -> Origin:
        return Origin() if self.node is None else origin_in(self.node)


def sizes_in(model: ir.Model, feeds: Mapping[str, Array]) -> dict[str, int]:
    """Return the sizes of a model's dynamic dimensions in some inputs."""
    found: dict[str, int] = {}
    dims = Dims.of(model)
    texts: list[tuple[str, int]] = []
    for value in model.graph.inputs:
        if value.shape is not None and str(value.name) in feeds:
            given = zip(value.shape, feeds[str(value.name)].shape, strict=False)
            texts += [(str(dim.value), size) for dim, size in given if isinstance(dim, ir.SymbolicDim) and dim.value]
    for text, size in texts:
        if dims.is_name(text):
            found[text] = size
    for text, size in texts:
        unknown = [name for name in names_in(text) if name not in found]
        if not dims.is_name(text) and len(unknown) == 1:
            found |= _solved(text, unknown[0], size, found)
    return found


def _solved(text: str, name: str, size: int, known: Mapping[str, int]) -> dict[str, int]:
    """Return the size of a dimension in ``2*half + 1``; nothing where the expression is not linear in it."""
    low, high = (evaluated(text, {**known, name: n}) for n in (0, 1))
    if not isinstance(low, int) or not isinstance(high, int) or high == low or (size - low) % (high - low):
        return {}
    root = (size - low) // (high - low)
    return {name: root} if evaluated(text, {**known, name: root}) == size else {}


def without_counting(times: KernelTimes, call_overhead: float, counted: float, plain: float) -> KernelTimes:
    """Return the times without what counting adds: its cost for each call, then the ratio of a run without to one with.

    Args:
        times: of a run that counts.
        call_overhead: the seconds that counting adds to each call.
        counted: the seconds of a run that counts.
        plain: the seconds of one that does not.
    """
    calls = sum(kernel.calls for kernel in times.kernels)
    rest = counted - call_overhead * calls
    scale = min(max(plain / rest, _SLOWED[0]), _SLOWED[1]) if rest > 0 else 1.0
    left = [max(kernel.seconds - call_overhead * kernel.calls, 0.0) for kernel in times.kernels]
    if times.seconds <= counted and sum(left) * scale > plain:  # one after the other, they take no longer than the run
        scale = plain / sum(left)
    kernels = [dataclasses.replace(k, seconds=own * scale) for k, own in zip(times.kernels, left, strict=True)]
    return dataclasses.replace(times, kernels=tuple(kernels))


class Costs:
    """Counts what kernels compute and move, at the sizes of a run."""

    def __init__(self, model: ir.Model, sizes: Mapping[str, int], limits: Limits | None) -> None:
        self._shapes, self._limits = Shapes(model, sizes), limits

    def parts(self, times: KernelTimes) -> list[Part]:
        """Return the parts of all kernels; their seconds add up to those of the kernels."""
        return [part for n, kernel in enumerate(times.kernels) for part in self._of(n, kernel)]

    def memory_seconds(self, nodes: Sequence[ir.Node]) -> float | None:
        """Return the seconds that the bytes of nodes which run as one take; None if they are not known."""
        return self._moving(self._bytes(nodes), 1.0)

    def _of(self, position: int, kernel: Kernel) -> list[Part]:
        if not kernel.nodes:
            moved = 0 if kernel.operator in _VIEWS else kernel.moved
            beside = kernel.beside[0] if kernel.beside else None
            moving = self._moving(moved, kernel.calls) if _tells(kernel) else None
            return [Part(position, beside, kernel.seconds, 0, moved, None, moving)]
        counts = [self._count(node) for node in kernel.nodes]
        alone = [self._bytes([node]) for node in kernel.nodes]
        computing = [self._computing(count, kernel, kernel.calls) or 0.0 for count in counts]
        reading = [self._moving(moved, kernel.calls) or 0.0 for moved in alone]
        fractions = _fractions(computing, reading, kernel.seconds)
        together = self._bytes(kernel.nodes)
        together = kernel.moved if together is None else together
        return [
            self._part(position, kernel, node, count, together, fraction)
            for node, count, fraction in zip(kernel.nodes, counts, fractions, strict=True)
        ]

    def _part(
        self, position: int, kernel: Kernel, node: ir.Node, count: int | None, moved: int | None, fraction: float
    ) -> Part:
        calls = kernel.calls
        tells = _tells(kernel)
        moving = self._moving(moved, calls) if tells else None
        return Part(
            position,
            node,
            kernel.seconds * fraction,
            None if count is None else round(count * calls),
            None if moved is None else round(moved * fraction * calls),
            self._computing(count, kernel, calls) if tells else None,
            None if moving is None else moving * fraction,
        )

    def _count(self, node: ir.Node) -> int | None:
        try:
            found = multiply_adds(node, self._shapes)
        except UnknownShapeError:
            return None
        return found if isinstance(found, int) else None

    def _bytes(self, nodes: Sequence[ir.Node]) -> int | None:
        found = bytes_moved(nodes, self._shapes)
        return found if isinstance(found, int) else None

    def _computing(self, count: int | None, kernel: Kernel, calls: float) -> float | None:
        if self._limits is None or not count:
            return None
        return count * calls / self._limits.multiply_adds[limited_by(kernel.dtype, self._limits)]

    def _moving(self, moved: int | None, calls: float) -> float | None:
        if self._limits is None or not moved:
            return None
        return moved * calls / bandwidth_at(self._limits, moved)


def limited_by(dtype: str, limits: Limits) -> str:
    """Return the dtype whose rate of multiply-adds is the limit of a kernel."""
    kind = "int8" if dtype in _INTEGERS else dtype
    return kind if kind in limits.multiply_adds else next(iter(limits.multiply_adds))


def bandwidth_at(limits: Limits, moved: int) -> float:
    """Return the bytes in a second that are the limit where so many are worked on: between the sizes measured."""
    sizes = sorted(limits.bandwidth)
    rates = [math.log(limits.bandwidth[size]) for size in sizes]
    return math.exp(float(np.interp(math.log(moved), [math.log(size) for size in sizes], rates)))


def _fractions(computing: Sequence[float], moving: Sequence[float], seconds: float) -> list[float]:
    """Return the part of a kernel's time that each of its nodes has: as the limits say that they would take it.

    Alone they may take longer than the kernel, which reads and writes less. Then each has the time of its
    multiply-adds at least, and what is left is divided by what else they would take.
    """
    alone = [max(c, m, _LEAST) for c, m in zip(computing, moving, strict=True)]
    left = seconds - sum(computing)
    if sum(alone) <= seconds:
        return [part / sum(alone) for part in alone]
    if left <= 0:
        return [max(c, _LEAST) / sum(max(c, _LEAST) for c in computing) for c in computing]
    further = [max(a - c, _LEAST) for a, c in zip(alone, computing, strict=True)]
    return [(c + left * f / sum(further)) / seconds for c, f in zip(computing, further, strict=True)]


def _tells(kernel: Kernel) -> bool:
    return kernel.seconds >= _TELLING * max(kernel.calls, 1.0)


class Tables:
    """Adds the parts up by node, operator, module and line."""

    def __init__(self, times: KernelTimes, parts: Sequence[Part], run_seconds: float, in_python: Iterable[str]) -> None:
        self._times, self._parts, self._run = times, parts, run_seconds
        self._in_python = set(in_python)

    def nodes(self) -> tuple[NodeTime, ...]:
        found = [self._node(n, parts) for n, parts in self._by(lambda part: [part.kernel]).items()]
        return tuple(sorted(found, key=lambda node: -node.seconds))

    def operators(self) -> tuple[OperatorTime, ...]:
        kernels = self._times.kernels
        found = self._by(lambda part: [kernels[part.kernel].operator])
        rows = [
            OperatorTime(operator=name, kernels=len({p.kernel for p in parts}), **self._sums(parts))
            for name, parts in found.items()
        ]
        return tuple(sorted(rows, key=lambda row: -row.seconds))

    def modules(self) -> tuple[ModuleTime, ...]:
        """Return every module with all that is inside it; the model itself is the first."""
        found = self._by(lambda part: _paths(part.origin.module))
        return tuple(
            ModuleTime(
                module=path,
                own_seconds=sum(p.seconds for p in parts if p.origin.module == path),
                **self._sums(parts),
            )
            for path, parts in sorted(found.items(), key=lambda item: _natural(item[0]))
        )

    def lines(self) -> tuple[LineTime, ...]:
        found = self._by(lambda part: [part.origin.source] if part.origin.source else [])
        rows = [
            LineTime(
                source=source,
                operators=tuple(dict.fromkeys(p.origin.operator for p in parts if p.origin.operator)),
                **self._sums(parts),
            )
            for source, parts in found.items()
        ]
        return tuple(sorted(rows, key=lambda row: -row.seconds))

    def _by(self, keys: Callable[[Part], Sequence[Any]]) -> dict[Any, list[Part]]:
        found: dict[Any, list[Part]] = {}
        for part in self._parts:
            for key in keys(part):
                found.setdefault(key, []).append(part)
        return found

    def _sums(self, parts: Sequence[Part]) -> dict[str, Any]:
        seconds = sum(p.seconds for p in parts)
        return {
            "seconds": seconds,
            "share": seconds / self._run if self._run else 0.0,
            "multiply_adds": _sum([p.multiply_adds for p in parts]),
            "bytes_moved": _sum([p.bytes_moved for p in parts]),
            "arithmetic": _reached([p.at_full_rate for p in parts], seconds),
            "memory": _reached([p.at_full_bandwidth for p in parts], seconds),
        }

    def _node(self, position: int, parts: Sequence[Part]) -> NodeTime:
        kernel = self._times.kernels[position]
        most = max(parts, key=lambda part: part.seconds)
        nodes = kernel.nodes
        heavy = most.node if nodes else None
        origins = [origin for n in (nodes or kernel.beside) for origin in origins_in(n)]
        return NodeTime(
            name=(name_of(heavy) if heavy is not None else "") or kernel.name,
            operator=kernel.operator,
            kernel=kernel.name,
            nodes=tuple(map(name_of, nodes)),
            operators=tuple(n.op_type for n in nodes),
            computes=tuple(operator for n in nodes for operator in operators_in(n)),
            module=most.origin.module,
            source=most.origin.source,
            sources=tuple(dict.fromkeys(o.source for o in origins if o.source)),
            inserted=not nodes,
            inside="" if kernel.inside is None else self._times.kernels[kernel.inside].name,
            calls=kernel.calls,
            in_python=any(operator_name(n) in self._in_python for n in nodes),
            dtype=kernel.dtype,
            device=kernel.device,
            **self._sums(parts),
        )


def _paths(module: str) -> list[str]:
    """Return a module with those around it, the model itself first: ``a.b`` gives the model, ``a`` and ``a.b``."""
    steps = module.split(".") if module else []
    return ["", *(".".join(steps[: n + 1]) for n in range(len(steps)))]


def _natural(path: str) -> list[tuple[int, str]]:
    return [(int(step), "") if step.isdecimal() else (-1, step) for step in path.split(".")] if path else []


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _reached(ideal: Sequence[float | None], seconds: float) -> float | None:
    known = [part for part in ideal if part is not None]
    return sum(known) / seconds if known and seconds else None
