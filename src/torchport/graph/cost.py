"""What one run of a model takes: multiply-adds and memory for activations.

Symbolic in the dynamic dimensions, or at given sizes:

    >>> measure(model).multiply_adds
    27.6k·batch
    >>> measure(model, {"batch": 8}).multiply_adds
    221184

Memory is counted in the order the nodes stand in: a value lives from the node that makes it to the last that needs
it, inputs and outputs to the end. Weights are not in it. An engine that works in place needs less.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import onnx_ir as ir

from torchport.graph.multiply_adds import UnknownShapeError, multiply_adds
from torchport.irtools.polynomials import Size, number, product
from torchport.irtools.shapes import Shapes, attribute
from torchport.irtools.traversal import inlined

ASSUMED = 64  # the size of dynamic dimensions where two amounts have to be compared


@dataclasses.dataclass(frozen=True)
class Cost:
    """What one run takes.

    Attributes:
        multiply_adds: of convolutions, matrix products, recurrent layers and attention.
        activations: bytes of all values computed, together.
        peak: bytes of the values that live at once, at most.
        by_module: multiply-adds by module path.
        by_operator: multiply-adds by operator.
        unknown: nodes whose shapes nobody knows; their multiply-adds are not counted.
        unsized: values whose shapes nobody knows; their memory is not counted.
        notes: what was assumed.
    """

    multiply_adds: Size
    activations: Size
    peak: Size
    by_module: Mapping[str, Size]
    by_operator: Mapping[str, Size]
    unknown: tuple[str, ...] = ()
    unsized: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def measure(model: ir.Model, sizes: Mapping[str, int] | None = None) -> Cost:
    """What one run of the model takes, with dynamic dimensions of these sizes or, without, symbolic in them.

    The model is left as it is. Local functions are counted at each place they are called.
    """
    return measured(Shapes(inlined(model), sizes))


def measured(shapes: Shapes) -> Cost:
    """As `measure`, for a model without functions whose shapes are there already."""
    return _Measuring(shapes).run(shapes.model.graph)


class _Measuring:
    def __init__(self, shapes: Shapes) -> None:
        self._shapes = shapes
        self._sizes: dict[int, Size] = {}
        self._unknown: dict[str, None] = {}
        self._unsized: dict[str, None] = {}
        self._notes: dict[str, None] = {}
        self._modules: dict[str, Size] = {}
        self._operators: dict[str, Size] = {}

    def run(self, graph: ir.Graph) -> Cost:
        total, made = self._work(graph, 1)
        held = [v for v in graph.inputs if v.name not in graph.initializers]
        inputs = sum((self._bytes(v) for v in held), start=0)
        peak = self._peak(graph) + inputs
        return Cost(
            total,
            made,
            peak,
            dict(self._modules),
            dict(self._operators),
            tuple(self._unknown),
            tuple(self._unsized),
            tuple(self._notes),
        )

    def _work(self, graph: ir.Graph, times: Size) -> tuple[Size, Size]:
        """Multiply-adds and bytes made by a graph that is run `times` times, with those inside it."""
        total: Size = 0
        made: Size = 0
        for node in graph:
            count = self._count(node) * times
            if count != 0:
                total = total + count
                self._note(node, count)
            made = made + sum((self._bytes(v) for v in node.outputs), start=0) * times
            inner, inner_made = self._inside(node, times)
            total, made = total + inner, made + inner_made
        return total, made

    def _note(self, node: ir.Node, count: Size) -> None:
        module = node.metadata_props.get("torchport.module", "")
        self._modules[module] = self._modules.get(module, 0) + count
        self._operators[node.op_type] = self._operators.get(node.op_type, 0) + count

    def _count(self, node: ir.Node) -> Size:
        try:
            return multiply_adds(node, self._shapes)
        except UnknownShapeError:
            self._unknown[node.name or node.op_type] = None
            return 0

    def _inside(self, node: ir.Node, times: Size) -> tuple[Size, Size]:
        bodies = subgraphs(node)
        if not bodies:
            return 0, 0
        if node.op_type == "If":
            self._notes["branches: the dearer one is counted"] = None
            return self._dearest(bodies, times)
        rounds = self._rounds(node)
        return self._work(bodies[0], times * rounds)

    def _dearest(self, bodies: list[ir.Graph], times: Size) -> tuple[Size, Size]:
        before = dict(self._modules), dict(self._operators)
        tried = []
        for body in bodies:
            self._modules, self._operators = dict(before[0]), dict(before[1])
            tried.append((self._work(body, times), self._modules, self._operators))
        best, self._modules, self._operators = max(tried, key=lambda t: [number(a, ASSUMED) for a in t[0]])
        return best

    def _rounds(self, node: ir.Node) -> Size:
        """How often a loop's body runs."""
        if node.op_type == "Scan":
            count = attribute(node, "num_scan_inputs", 1)
            shape = self._shapes.of(node.inputs[-count])
            axes = attribute(node, "scan_input_axes", [0])
            length = shape[axes[0]] if shape and axes[0] < len(shape) else None
            if length is not None:
                return length
        elif node.op_type == "Loop" and node.inputs[0] is not None:
            limit = node.inputs[0].const_value
            if limit is not None and limit.size == 1:
                return max(0, min(int(limit.numpy().reshape(-1)[0]), 2**40))
        self._notes[f"{node.op_type} '{node.name}' is counted once: only a run shows how often it turns"] = None
        return 1

    def _bytes(self, value: ir.Value) -> Size:
        if id(value) not in self._sizes:
            self._sizes[id(value)] = self._bytes_of(value)
        return self._sizes[id(value)]

    def _bytes_of(self, value: ir.Value) -> Size:
        shape, dtype = self._shapes.of(value), self._shapes.dtype(value)
        producer = value.producer()
        if value.name in ("", None) or (producer is not None and producer.op_type == "Constant"):
            return 0
        if shape is None or None in shape or dtype is None or not isinstance(value.type, ir.TensorType | None):
            self._unsized[f"{value.name}"] = None
            return 0
        if dtype in (ir.DataType.STRING, ir.DataType.UNDEFINED):
            return 0
        count = product(d for d in shape if d is not None)
        if dtype.bitwidth % 8 == 0:
            return count * (dtype.bitwidth // 8)
        return -(-count * dtype.bitwidth // 8) if isinstance(count, int) else count * dtype.bitwidth // 8

    def _peak(self, graph: ir.Graph) -> Size:
        """Bytes of what lives at once inside a graph, without its inputs."""
        nodes = list(graph)
        last = _last_uses(graph, nodes)
        sizes = {id(v): self._bytes(v) for node in nodes for v in node.outputs}
        inner = [max((self._peak(g) for g in subgraphs(n)), key=_weigh, default=0) for n in nodes]
        most, at = 0, -1
        live = 0
        ends: dict[int, list[int]] = {}
        for index, node in enumerate(nodes):
            for value in node.outputs:
                weight = _weigh(sizes[id(value)])
                live += weight
                ends.setdefault(last.get(id(value), index), []).append(weight)
            if live + _weigh(inner[index]) > most:
                most, at = live + _weigh(inner[index]), index
            live -= sum(ends.get(index, ()))
        if at < 0:
            return 0
        alive = (v for n, node in enumerate(nodes[: at + 1]) for v in node.outputs if last.get(id(v), n) >= at)
        return sum((sizes[id(v)] for v in alive), start=inner[at])


def _weigh(size: Size) -> int:
    return number(size, ASSUMED)


def _last_uses(graph: ir.Graph, nodes: list[ir.Node]) -> dict[int, int]:
    last: dict[int, int] = {}
    for index, node in enumerate(nodes):
        for value in used_by(node):
            last[id(value)] = index
    last |= {id(value): len(nodes) for value in graph.outputs}
    return last


def used_by(node: ir.Node) -> Iterable[ir.Value]:
    """What a node reads, and what its bodies read."""
    yield from (v for v in node.inputs if v is not None)
    for graph in subgraphs(node):
        for inner in ir.traversal.RecursiveGraphIterator(graph):
            yield from (v for v in inner.inputs if v is not None)
        yield from graph.outputs


def subgraphs(node: ir.Node) -> list[ir.Graph]:
    """The graphs in a node's attributes."""
    found: list[Any] = []
    for given in node.attributes.values():
        if given.type == ir.AttributeType.GRAPH and not given.is_ref():
            found.append(given.as_graph())
        elif given.type == ir.AttributeType.GRAPHS and not given.is_ref():
            found += given.as_graphs()
    return found
