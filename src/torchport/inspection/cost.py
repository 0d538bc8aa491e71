"""The cost of one run of a model: multiply-adds by node, and memory for activations."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping

import onnx_ir as ir

from torchport.irtools.metadata import module_of
from torchport.irtools.names import name_of
from torchport.irtools.node_reader import attribute_or, is_constant_node
from torchport.irtools.polynomials import Size, number, product
from torchport.irtools.shapes import Shape, Shapes
from torchport.irtools.traversal import inlined, subgraphs, used_values

# What one run of a model takes: multiply-adds and memory for activations.
#
# Symbolic in the dynamic dimensions, or at given sizes:
#
#     >>> measure(model).multiply_adds
#     27.6k·batch
#     >>> measure(model, {"batch": 8}).multiply_adds
#     221184
#
# Memory is counted in the order the nodes stand in: a value lives from the node that makes it to the last that needs
# it, inputs and outputs to the end. Weights are not in it. An engine that works in place needs less.

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
        module = module_of(node)
        self._modules[module] = self._modules.get(module, 0) + count
        self._operators[node.op_type] = self._operators.get(node.op_type, 0) + count

    def _count(self, node: ir.Node) -> Size:
        try:
            return multiply_adds(node, self._shapes)
        except UnknownShapeError:
            self._unknown[name_of(node) or node.op_type] = None
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
            count = attribute_or(node, "num_scan_inputs", 1)
            shape = self._shapes.of(node.inputs[-count])
            axes = attribute_or(node, "scan_input_axes", [0])
            length = shape[axes[0]] if shape and axes[0] < len(shape) else None
            if length is not None:
                return length
        elif node.op_type == "Loop" and node.inputs[0] is not None:
            limit = node.inputs[0].const_value
            if limit is not None and limit.size == 1:
                return max(0, min(int(limit.numpy().reshape(-1)[0]), 2**40))
        self._notes[f"{node.op_type} '{name_of(node)}' is counted once: only a run shows how often it turns"] = None
        return 1

    def _bytes(self, value: ir.Value) -> Size:
        if id(value) not in self._sizes:
            self._sizes[id(value)] = self._bytes_of(value)
        return self._sizes[id(value)]

    def _bytes_of(self, value: ir.Value) -> Size:
        if value.name in ("", None) or is_constant_node(value.producer()):
            return 0
        found = size_in_bytes(value, self._shapes)
        if found is None:
            self._unsized[f"{value.name}"] = None
        return found or 0

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
        for value in used_values(node):
            last[id(value)] = index
    last |= {id(value): len(nodes) for value in graph.outputs}
    return last


# How many bytes a value takes, and how many go in and out of nodes.

_VIEWS = ("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Shape", "Size")  # give the same memory a new shape
_PICKING = ("Gather", "GatherND", "GatherElements", "Slice")  # read only what they give


def size_in_bytes(value: ir.Value, shapes: Shapes) -> Size | None:
    """Return the bytes of a value; None if its shape or dtype is not known. Texts count as none."""
    shape, dtype = shapes.of(value), shapes.dtype(value)
    if shape is None or None in shape or dtype is None or not isinstance(value.type, ir.TensorType | None):
        return None
    if dtype in (ir.DataType.STRING, ir.DataType.UNDEFINED):
        return 0
    count = product(d for d in shape if d is not None)
    if dtype.bitwidth % 8 == 0:
        return count * (dtype.bitwidth // 8)
    return -(-count * dtype.bitwidth // 8) if isinstance(count, int) else count * dtype.bitwidth // 8


def bytes_moved(nodes: Collection[ir.Node], shapes: Shapes) -> Size | None:
    """Return the bytes that nodes which run as one read and write; None if a shape is not known.

    What only passes between them stays in registers and caches. A view moves nothing.
    """
    within = set(nodes)
    total: Size = 0
    for value in dict.fromkeys(v for node in nodes for v in _moving(node, within)):
        size = size_in_bytes(value, shapes)
        if size is None:
            return None
        total = total + size
    return total


def _moving(node: ir.Node, within: set[ir.Node]) -> list[ir.Value]:
    """Return the values that a node reads from outside a group of nodes and those it gives to the outside."""
    if node.op_type in _VIEWS:
        return []
    outputs = [v for v in node.outputs if v.name and (v.is_graph_output() or not within.issuperset(v.consumers()))]
    given = node.inputs[1:] if node.op_type in _PICKING else node.inputs
    return [v for v in given if v is not None and v.producer() not in within] + outputs


# How many multiply-adds a node takes: of convolutions, matrix products, recurrent layers and attention.
#
# Everything else (activations, norms, pooling, moving data) counts as none, as is usual.

_Known = tuple[Size, ...]


class UnknownShapeError(Exception):
    """A shape that is needed is not known."""


def multiply_adds(node: ir.Node, shapes: Shapes) -> Size:
    """The count of one node; bodies of loops and branches are not in it.

    Raises:
        UnknownShapeError: a shape it depends on is not known.
    """
    domain = "" if node.domain == "ai.onnx" else node.domain
    rule = _RULES.get(node.op_type) if domain == "" else _MICROSOFT.get(node.op_type)
    rule = rule if domain in ("", "com.microsoft") else None
    try:
        return 0 if rule is None else rule(node, shapes)
    except (IndexError, ZeroDivisionError) as error:  # a node that its schema does not allow
        raise UnknownShapeError from error


def _full(shape: Shape | None) -> _Known:
    if shape is None or None in shape:
        raise UnknownShapeError
    return tuple(d for d in shape if d is not None)


def _input(node: ir.Node, index: int, shapes: Shapes) -> _Known:
    return _full(shapes.of(node.inputs[index]))


def _output(node: ir.Node, shapes: Shapes) -> Size:
    return product(_full(shapes.of(node.outputs[0])))


def _convolution(weight: int) -> Callable[[ir.Node, Shapes], Size]:
    """Each number that comes out takes the kernel times the channels of its group."""
    return lambda node, shapes: _output(node, shapes) * product(_input(node, weight, shapes)[1:])


def _transposed(node: ir.Node, shapes: Shapes) -> Size:
    """Each number that goes in is spread by the kernel over the channels of its group."""
    return product(_input(node, 0, shapes)) * product(_input(node, 1, shapes)[1:])


def _gemm(node: ir.Node, shapes: Shapes) -> Size:
    return _output(node, shapes) * _input(node, 0, shapes)[-2 if attribute_or(node, "transA", 0) else -1]


def _matmul(node: ir.Node, shapes: Shapes) -> Size:
    return _output(node, shapes) * _input(node, 0, shapes)[-1]


def _matmul_bits(node: ir.Node, shapes: Shapes) -> Size:
    rows = product(_input(node, 0, shapes)[:-1])
    return rows * int(attribute_or(node, "K", 0)) * int(attribute_or(node, "N", 0))


def _recurrent(node: ir.Node, shapes: Shapes) -> Size:
    """Each step of each sequence takes every weight once."""
    steps, batch, _ = _input(node, 0, shapes)
    return steps * batch * (product(_input(node, 1, shapes)) + product(_input(node, 2, shapes)))


def _attention(node: ir.Node, shapes: Shapes) -> Size:
    """Queries by keys, then scores by values; a batch of heads each."""
    query, key, value = (_input(node, n, shapes) for n in range(3))
    if len(query) == 4:
        batch, heads, asked, width = query
        value_width = value[3]
    else:
        batch, asked, hidden = query
        heads = int(attribute_or(node, "q_num_heads", 0))
        width, value_width = hidden // heads, value[2] // int(attribute_or(node, "kv_num_heads", 0))
    held = key[2] if len(key) == 4 else key[1]
    if len(node.inputs) > 4 and node.inputs[4] is not None:
        held = held + _input(node, 4, shapes)[2]
    return batch * heads * asked * held * (width + value_width)


def _einsum(node: ir.Node, shapes: Shapes) -> Size:
    """Every combination of the letters once, for each operand but the first."""
    left = attribute_or(node, "equation", "").replace(" ", "").partition("->")[0].split(",")
    if len(left) < 2 or "..." in "".join(left):
        return 0 if len(left) < 2 else _ellipsis(node, left, shapes)
    sizes = {c: d for n, term in enumerate(left) for c, d in zip(term, _input(node, n, shapes), strict=False)}
    return product(sizes.values()) * (len(left) - 1)


def _ellipsis(node: ir.Node, left: list[str], shapes: Shapes) -> Size:
    """What comes out, times the letters of the first operand that do not."""
    right = attribute_or(node, "equation", "").replace(" ", "").partition("->")[2]
    before, _, after = left[0].partition("...")
    first = _input(node, 0, shapes)
    sizes = [*zip(before, first, strict=False), *zip(after[::-1], first[::-1], strict=False)]
    return _output(node, shapes) * product(d for c, d in sizes if c not in right) * (len(left) - 1)


def _attention_and_projection(node: ir.Node, shapes: Shapes) -> Size:
    """ONNX Runtime's own: three projections of one input, then attention to itself."""
    batch, length, hidden = _input(node, 0, shapes)
    projected = _input(node, 1, shapes)[1]
    return batch * length * hidden * projected + 2 * batch * length * length * (projected // 3)


_PRODUCTS: dict[str, Callable[[ir.Node, Shapes], Size]] = {
    **dict.fromkeys(("Conv", "ConvInteger", "DeformConv", "FusedConv"), _convolution(1)),
    "QLinearConv": _convolution(3),
    **dict.fromkeys(("Gemm", "FusedGemm", "FusedMatMul"), _gemm),
    **dict.fromkeys(("MatMul", "MatMulInteger", "QLinearMatMul"), _matmul),
}
_RULES = {
    **_PRODUCTS,
    "ConvTranspose": _transposed,
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
    "Attention": _attention,
    "Einsum": _einsum,
}
_MICROSOFT = {**_PRODUCTS, "MatMulNBits": _matmul_bits, "Attention": _attention_and_projection}
