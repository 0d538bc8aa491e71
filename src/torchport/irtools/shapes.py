"""The shape of every value in a model, symbolic in the dynamic dimensions or at given sizes.

Three sources, in this order: what the file states, what onnx infers, and for dimensions that onnx gives up on (a
convolution of a symbolic height) the formulas here. No weight is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import onnx
import onnx_ir as ir
from onnx import GraphProto, ModelProto

from torchport.irtools.dims import Dims, input_dims, is_generated, is_placeholder, plain_dims
from torchport.irtools.inference import infer_shapes, without_weights
from torchport.irtools.node_reader import attribute_or, constant, constant_tensor
from torchport.irtools.polynomials import Amount, Size, product
from torchport.irtools.serialization import proto_graphs
from torchport.irtools.traversal import all_values

Shape = tuple[Size | None, ...]
_BOUNDS = 64  # numbers of a constant that may be a shape or bounds of a slice
_LAST = 2**31 - 1  # from here on the end of a slice means the end of the axis


class Shapes:
    """Shapes by value, as `Shape`; None where nobody knows."""

    def __init__(self, model: ir.Model, sizes: Mapping[str, int] | None = None, *, like: Shapes | None = None) -> None:
        """Args: the model, sizes of dynamic dimensions, and shapes of the same model, to save some time."""
        self._sizes = dict(sizes or {})
        self._bare: ModelProto | None = like._bare if like is not None else None
        self._known: dict[int, Shape | None] = {}
        self._dtypes: dict[int, ir.DataType | None] = {}
        self.model = model  # its values' ids are the keys
        self._dims = Dims.of(model)
        self._names = input_dims((str(v.name), plain_dims(v.shape or ())) for v in model.graph.inputs)
        self._own = {symbol for name in self._names.values() for symbol in self._dims.symbols(name)}
        self._take_stated(model)
        if self._gaps(model):
            self._take_inferred(model)
            self._fill(model)

    def of(self, value: ir.Value | None) -> Shape | None:
        return None if value is None else self._known.get(id(value))

    def dtype(self, value: ir.Value) -> ir.DataType | None:
        return self._dtypes.get(id(value))

    def symbols(self) -> tuple[str, ...]:
        """The names of dimensions that are still open."""
        amounts = [d for shape in self._known.values() for d in shape or () if isinstance(d, Amount)]
        return tuple(dict.fromkeys(name for amount in amounts for name in amount.symbols))

    def _take_stated(self, model: ir.Model) -> None:
        inputs = {id(v) for v in model.graph.inputs}
        for value in all_values(model.graph):
            self._known[id(value)] = self._read(value, is_input=id(value) in inputs)
            self._dtypes[id(value)] = value.dtype

    def _read(self, value: ir.Value, *, is_input: bool) -> Shape | None:
        if value.const_value is not None:
            return tuple(value.const_value.shape.numpy())
        if value.shape is None:
            return None
        found = plain_dims(value.shape)
        named = [self._names.get((str(value.name), n), d) for n, d in enumerate(found)] if is_input else found
        return tuple(d if isinstance(d, int) else self._stated(d) for d in named)

    def _stated(self, text: str | None) -> Size | None:
        """Return a stated size; None where its name says only that it is unknown, unless an input has that name."""
        if text is None or ((is_placeholder(text) or is_generated(text)) and text not in self._names.values()):
            return None
        return self._dims.size(text, self._sizes)

    def _gaps(self, model: ir.Model) -> bool:
        return any(
            self._is_open(self._known.get(id(v))) or v.dtype is None
            for graph in model.graphs()
            for node in graph
            for v in node.outputs
        )

    def _take_inferred(self, model: ir.Model) -> None:
        try:
            self._bare = self._bare or without_weights(model)
            proto = ModelProto()
            proto.CopyFrom(self._bare)
            for message in proto_graphs(proto):
                for info in (*message.input, *message.output, *message.value_info):
                    self._settle(info, {})
            for info in proto.graph.input:
                self._settle(info, self._names)
            found = infer_shapes(proto)
        except Exception:  # noqa: BLE001 - a graph that inference does not like is still described
            return
        for graph, typed in _side_by_side(model.graph, found.graph):
            by_name = {info.name: info for info in (*typed.output, *typed.value_info)}
            for node in graph:
                for value in node.outputs:
                    if value.name in by_name:
                        self._take(value, by_name[value.name].type)

    def _take(self, value: ir.Value, kind: onnx.TypeProto) -> None:
        if not kind.HasField("tensor_type"):
            return
        tensor = kind.tensor_type
        self._dtypes[id(value)] = self._dtypes[id(value)] or ir.DataType(tensor.elem_type)
        if tensor.HasField("shape"):
            inferred = tuple(self._size(dim) for dim in tensor.shape.dim)
            self._known[id(value)] = self._merged(self._known[id(value)], inferred)

    def _size(self, dim: Any) -> Size | None:
        if dim.HasField("dim_value"):
            return int(dim.dim_value)
        return self._stated(dim.dim_param or None)

    def _settle(self, info: onnx.ValueInfoProto, names: Mapping[tuple[str, int], str]) -> None:
        """Write the given sizes into a stated shape, and leave it no names but those of the inputs' dimensions.

        onnx keeps a stated name where it could work the size out. So a name that no input has is taken out for it.
        """
        if not info.type.HasField("tensor_type") or not info.type.tensor_type.HasField("shape"):
            return
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            if dim.HasField("dim_value"):
                continue
            text = names.get((info.name, axis), dim.dim_param)
            size = self._stated(text or None)
            dim.Clear()
            if isinstance(size, int):
                dim.dim_value = size
            elif size is not None and not self._is_strange(size):
                dim.dim_param = text

    def _is_strange(self, size: Size | None) -> bool:
        """Check that a size is not expressed in the dimensions of the inputs."""
        return isinstance(size, Amount) and not self._own.issuperset(size.symbols)

    def _is_open(self, shape: Shape | None) -> bool:
        return shape is None or any(d is None or self._is_strange(d) for d in shape)

    def _merged(self, stated: Shape | None, found: Shape | None) -> Shape | None:
        if stated is None or found is None or len(stated) != len(found):
            return found if stated is None else stated
        return tuple(self._better(a, b) for a, b in zip(stated, found, strict=True))

    def _better(self, a: Size | None, b: Size | None) -> Size | None:
        better = b is not None and not self._is_strange(b) and self._is_strange(a)
        return b if a is None or better or (isinstance(b, int) and not isinstance(a, int)) else a

    def _fill(self, model: ir.Model) -> None:
        for node in model.graph.all_nodes():
            rule = _RULES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
            if rule is None or not node.outputs:
                continue
            out = node.outputs[0]
            shape = self._known.get(id(out))
            if self._is_open(shape):
                self._known[id(out)] = self._merged(shape, rule(node, [self.of(v) for v in node.inputs], shape))


def _side_by_side(graph: ir.Graph, message: GraphProto) -> Iterator[tuple[ir.Graph, GraphProto]]:
    """The graphs of a model and those of its message, in pairs."""
    pending = [(graph, message)]
    while pending:
        graph, message = pending.pop()
        yield graph, message
        for node, other in zip(graph, message.node, strict=True):
            for given in other.attribute:
                if given.HasField("g"):
                    pending.append((node.attributes[given.name].as_graph(), given.g))
                elif given.graphs:
                    pending.extend(zip(node.attributes[given.name].as_graphs(), given.graphs, strict=True))


# --- what onnx does not infer of symbolic dimensions ------------------------------------------------------------------

_Rule = Callable[[ir.Node, list["Shape | None"], "Shape | None"], "Shape | None"]


def _same(node: ir.Node, inputs: list[Shape | None], output: Shape | None) -> Shape | None:
    return inputs[0]


def _broadcast(node: ir.Node, inputs: list[Shape | None], output: Shape | None) -> Shape | None:
    known = [shape for shape in inputs if shape is not None]
    if len(known) < len(inputs):
        return None
    rank = max(map(len, known), default=0)
    padded = [(1,) * (rank - len(shape)) + shape for shape in known]
    return tuple(_widest(column) for column in zip(*padded, strict=True))


def _widest(sizes: tuple[Size | None, ...]) -> Size | None:
    others = [size for size in sizes if size != 1]
    numbers = [size for size in others if isinstance(size, int)]
    return (numbers or others or [1])[0]


def _window(node: ir.Node, inputs: list[Shape | None], output: Shape | None) -> Shape | None:
    """Convolution and pooling: ``(size + pads - dilation·(kernel - 1) - 1) // stride + 1``."""
    image = inputs[0]
    if image is None:
        return None
    weight = inputs[1] if node.op_type in ("Conv", "ConvInteger") and len(inputs) > 1 else None
    space = image[2:]
    kernel = attribute_or(node, "kernel_shape", weight[2:] if weight else None)
    if kernel is None or len(kernel) != len(space):
        return None
    channels = weight[0] if weight else image[1]
    return (image[0], channels, *(_slid(node, size, axis, kernel[axis], len(space)) for axis, size in enumerate(space)))


def _slid(node: ir.Node, size: Size | None, axis: int, kernel: Any, rank: int) -> Size | None:
    if size is None or not isinstance(kernel, int):
        return None
    stride = attribute_or(node, "strides", [1] * rank)[axis]
    padding = attribute_or(node, "auto_pad", "NOTSET")
    if padding.startswith("SAME"):
        return (size + (stride - 1)) // stride
    pads = attribute_or(node, "pads", [0] * 2 * rank) if padding == "NOTSET" else [0] * 99
    if len(pads) < 2 * rank:
        return None  # a fault that the linter names
    reach = attribute_or(node, "dilations", [1] * rank)[axis] * (kernel - 1) + 1
    rest = size + (pads[axis] + pads[axis + rank] - reach)
    if attribute_or(node, "ceil_mode", 0):
        rest = rest + (stride - 1)
    return rest // stride + 1


def _concat(node: ir.Node, inputs: list[Shape | None], output: Shape | None) -> Shape | None:
    first = inputs[0]
    if first is None or any(shape is None or len(shape) != len(first) for shape in inputs):
        return None
    axis = attribute_or(node, "axis", 0) % len(first)
    along = [shape[axis] for shape in inputs if shape is not None]
    total: Size | None = None if None in along else sum((d for d in along if d is not None), start=0)
    return (*first[:axis], total, *first[axis + 1 :])


def _transpose(node: ir.Node, inputs: list[Shape | None], output: Shape | None) -> Shape | None:
    shape = inputs[0]
    if shape is None:
        return None
    order = attribute_or(node, "perm", range(len(shape))[::-1])
    return tuple(shape[axis] for axis in order) if sorted(order) == list(range(len(shape))) else None


def _resize(node: ir.Node, inputs: list[Shape | None], output: Shape | None) -> Shape | None:
    scales = next((v for v in node.inputs[1:3] if v is not None and v.dtype == ir.DataType.FLOAT), None)
    tensor = None if scales is None else scales.const_value
    if inputs[0] is None or tensor is None or tensor.size != len(inputs[0]):
        return None
    from fractions import Fraction

    factors = [Fraction(float(f)).limit_denominator(4096) for f in tensor.numpy().reshape(-1)]
    return tuple(
        None if d is None else d * f.numerator // f.denominator for d, f in zip(inputs[0], factors, strict=True)
    )


def _reshape(node: ir.Node, inputs: list[Shape | None], output: Shape | None) -> Shape | None:
    """Return the shape with its one unknown size: what is left of the input for the -1 of a constant target."""
    shape, given = inputs[0], node.inputs[1] if len(node.inputs) > 1 else None
    wanted = _few(given)
    if shape is None or wanted is None or attribute_or(node, "allowzero", 0) or wanted.count(-1) > 1:
        return None
    copied = [axis for axis, size in enumerate(wanted) if size == 0]
    if any(axis >= len(shape) for axis in copied):
        return None
    rest = [size for axis, size in enumerate(shape) if axis not in copied]
    known = math.prod(size for size in wanted if size > 0)
    sizes = [size for size in rest if size is not None]
    free = product(sizes) // known if known and len(sizes) == len(rest) else None
    return tuple(shape[axis] if size == 0 else free if size == -1 else size for axis, size in enumerate(wanted))


def _slice(node: ir.Node, inputs: list[Shape | None], output: Shape | None) -> Shape | None:
    """Return the shape behind constant bounds: whole axes, known sizes, and what follows a first number of places."""
    if inputs[0] is None:
        return None
    if len(node.inputs) > 1:
        given = [_few(value) for value in node.inputs[1:]]
        starts, ends = given[:2] if len(given) > 1 else (None, None)
        axes = given[2] if len(given) > 2 and node.inputs[3] is not None else range(len(starts or ()))
        steps = given[3] if len(given) > 3 and node.inputs[4] is not None else [1] * len(starts or ())
    else:
        starts, ends = (attribute_or(node, name, None) for name in ("starts", "ends"))
        axes, steps = attribute_or(node, "axes", range(len(starts or ()))), [1] * len(starts or ())
    if starts is None or ends is None or axes is None or steps is None:
        return None
    shape = list(inputs[0])
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        shape[axis] = _sliced(shape[axis], int(start), int(end), int(step))
    return tuple(shape)


def _sliced(size: Size | None, start: int, end: int, step: int) -> Size | None:
    if isinstance(size, int):
        return len(range(*slice(start, None if step < 0 and end < -size else end, step).indices(size)))
    if size is None or step != 1 or start < 0 or end < _LAST:
        return None
    return size - start  # all of a dynamic axis, but for its first places


def _few(value: ir.Value | None) -> list[int] | None:
    """Return the numbers of a small constant, such as bounds."""
    tensor = constant_tensor(value)
    found = constant(value) if tensor is not None and tensor.size <= _BOUNDS else None
    return None if found is None else [int(number) for number in found.reshape(-1)]


def _padded(node: ir.Node, inputs: list[Shape | None], output: Shape | None) -> Shape | None:
    pads = _few(node.inputs[1]) if len(node.inputs) > 1 else attribute_or(node, "pads", None)
    shape = inputs[0]
    if shape is None or pads is None or len(pads) != 2 * len(shape):
        return None  # pads of some axes only are left to onnx
    added = [pads[axis] + pads[axis + len(shape)] for axis in range(len(shape))]
    return tuple(None if size is None else size + more for size, more in zip(shape, added, strict=True))


_ALIKE = (
    *("Relu", "LeakyRelu", "PRelu", "Sigmoid", "Tanh", "Erf", "Exp", "Log", "Sqrt", "Neg", "Abs", "Softplus", "Gelu"),
    *(
        "HardSigmoid",
        "HardSwish",
        "Mish",
        "Elu",
        "Selu",
        "Celu",
        "Clip",
        "Cast",
        "Identity",
        "Dropout",
        "Floor",
        "Ceil",
    ),
    *("Softmax", "LogSoftmax", "BatchNormalization", "InstanceNormalization", "LayerNormalization", "LRN", "Not"),
    *("GroupNormalization", "RMSNormalization", "CumSum", "Reciprocal", "Round", "Sign", "Sin", "Cos", "Swish"),
    *("QuantizeLinear", "DequantizeLinear", "LpNormalization", "Trilu", "IsNaN", "IsInf", "HardSwish"),
)
_WIDE = (
    *("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Mean", "Sum", "Mod", "Where", "And", "Or", "Xor"),
    *("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"),
)
_RULES: dict[str, _Rule] = {
    **dict.fromkeys(_ALIKE, _same),
    **dict.fromkeys(_WIDE, _broadcast),
    **dict.fromkeys(("Conv", "ConvInteger", "MaxPool", "AveragePool", "LpPool"), _window),
    "Concat": _concat,
    "Transpose": _transpose,
    "Resize": _resize,
    "Upsample": _resize,
    "Reshape": _reshape,
    "Slice": _slice,
    "Pad": _padded,
}
