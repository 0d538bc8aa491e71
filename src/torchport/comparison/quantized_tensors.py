"""Pair tensors of a model in lower precision with its float original, and fake-quantize its operators."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from torchport.comparison.tensor_cache import is_tensor
from torchport.inspection.matching.matcher import beyond_doubt, match
from torchport.irtools.names import Names

# Which tensors of a model in lower precision carry those of its float original.
#
# Converters to float16 and quantizers keep most names. What they put in between has names of its own, and an activation
# that quantizing does by itself is left out. Where hardly a name is the same, as in files of two exporters, the models
# are matched instead.

FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE)

_CLIPPING = ("Relu", "Clip")

Values = Mapping[str, ir.Value]


class Carriers:
    """For tensors of the original those of the other model that stand for them.

    Args:
        reference: the float original; both must say the types of their tensors.
        candidate: the model in lower precision.

    Example:
        >>> carriers = Carriers(fp32, int8)
        >>> [v.name for v in carriers.of("relu_3", Names(int8).values)]
        ['relu_3_DequantizeLinear_Output', 'relu_3']
    """

    def __init__(self, reference: ir.Model, candidate: ir.Model) -> None:
        names = Names(candidate)
        self._clipped: dict[str, str] = {}
        self._names = self._by_tensor(reference, names.values)
        self._names = self._by_node(reference, names.nodes) | self._names
        if 2 * len(self._names) < len(_own(reference)):
            self._names = _by_matching(reference, candidate) | self._names
        self._take_clipping_in(reference, names.values)

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def one(self, name: str, values: Values) -> ir.Value:
        """The tensor to read where the original's is wanted: the one of most precision."""
        return values[self._names[name]]

    def of(self, name: str, values: Values) -> list[ir.Value]:
        """All tensors that stand for one of the original: those behind a quantization or a cast first.

        Args:
            name: the tensor of the original.
            values: the tensors of the other model, or of a copy of it, by name.
        """
        if name in self._clipped:
            return requantized(values[self._clipped[name]])
        if name not in self._names:
            return []
        carrier = values[self._names[name]]
        if carrier.name in self._clipped.values():  # what is behind it stands for the activation's result
            return [carrier]
        wide = [n.outputs[0] for n in carrier.consumers() if n.op_type == "Cast" and n.outputs[0].dtype in FLOATS]
        return [*wide, *requantized(carrier), carrier]

    def hidden(self, name: str) -> bool:
        """Whether a tensor of the original is only inside a layer of the other model: a fused node has it."""
        return name not in self._names or (name not in self._clipped and self._names[name] in self._clipped.values())

    @staticmethod
    def _by_tensor(reference: ir.Model, values: Values) -> dict[str, str]:
        return {n: n for n, v in _own(reference).items() if n in values and _alike(v, values[n])}

    def _by_node(self, reference: ir.Model, nodes: Mapping[str, ir.Node]) -> dict[str, str]:
        found: dict[str, str] = {}
        for node in reference.graph:
            twin = nodes.get(node.name) if node.name else None
            if twin is None or twin.op_type != node.op_type or len(twin.outputs) != len(node.outputs):
                continue
            for ours, theirs in zip(node.outputs, twin.outputs, strict=True):
                fused = theirs.name in self._names  # it gives what a later node should, which is inside it
                if ours.name and theirs.name and not fused and _alike(ours, theirs):
                    found[ours.name] = theirs.name
        return found

    def _take_clipping_in(self, reference: ir.Model, values: Values) -> None:
        """A Relu before a QuantizeLinear whose zero is the smallest number needs no node any more.

        Its result is then what comes out of the DequantizeLinear, though a tensor before may have its name.
        """
        for node in reference.graph:
            given, taken = node.outputs[0].name, node.inputs[0] if node.inputs else None
            if node.op_type not in _CLIPPING or not given or taken is None:
                continue
            base = self._names.get(given) or self._names.get(str(taken.name))
            maker = values[base].producer() if base else None
            if base is None or (maker is not None and maker.op_type == node.op_type):
                continue
            behind = requantized(values[base])
            if behind:
                self._clipped[given] = base
                self._names[given] = str(behind[0].name)


def _own(model: ir.Model) -> dict[str, ir.Value]:
    """Tensors that go into a model, or that its nodes give."""
    return {v.name: v for v in (*model.graph.inputs, *(v for n in model.graph for v in n.outputs)) if v.name}


def _by_matching(reference: ir.Model, candidate: ir.Model) -> dict[str, str]:
    found = match(reference, candidate)
    sure = ((v, found.values[v]) for v in beyond_doubt(found) if v.producer() is not None)
    return {v.name: w.name for v, w in sure if v.name and w.name and _alike(v, w)}


def requantized(carrier: ir.Value) -> list[ir.Value]:
    """The same tensor once it was quantized and dequantized."""
    pairs = [n.outputs[0] for n in carrier.consumers() if n.op_type == "QuantizeLinear" and n.inputs[0] is carrier]
    back = [n for given in pairs for n in given.consumers() if n.op_type == "DequantizeLinear" and n.inputs[0] is given]
    return [n.outputs[0] for n in back]


def _alike(one: ir.Value, other: ir.Value) -> bool:
    if not (is_tensor(one) and is_tensor(other)):
        return False
    return one.dtype == other.dtype or (one.dtype in FLOATS and other.dtype in FLOATS)


# Quantized operators written as what they mean: dequantize, compute in float, quantize.
#
# ``QLinearConv(x, w) = Q(Conv(DQ(x), DQ(w)))`` up to rounding. So written, a layer can be put back to float by leaving
# the pairs of Q and DQ around it out.

MICROSOFT = "com.microsoft"


@dataclasses.dataclass(frozen=True)
class _Form:
    """Where a quantized operator has its tensors: the places of value, scale and zero point.

    Attributes:
        operator: the float operator of ONNX.
        inputs: the place of each quantized input; its scale and zero point follow.
        output: the place of the output's scale; its zero point follows.
        bias: the place of a bias of 32 bits, whose scale is the product of the first two.
        axes: for each input the axis its scales run along, if there are several.
        drop: attributes that the float operator does not have.
    """

    operator: str
    inputs: tuple[int, ...]
    output: int
    bias: int | None = None
    axes: tuple[int, ...] = (1, 1)
    drop: tuple[str, ...] = ()


_FORMS = {
    ("", "QLinearConv"): _Form("Conv", (0, 3), 6, bias=8, axes=(1, 0)),
    ("", "QLinearMatMul"): _Form("MatMul", (0, 3), 6, axes=(-2, -1)),
    (MICROSOFT, "QLinearAdd"): _Form("Add", (0, 3), 6),
    (MICROSOFT, "QLinearMul"): _Form("Mul", (0, 3), 6),
    (MICROSOFT, "QLinearSigmoid"): _Form("Sigmoid", (0,), 3),
    (MICROSOFT, "QLinearLeakyRelu"): _Form("LeakyRelu", (0,), 3),
    (MICROSOFT, "QLinearGlobalAveragePool"): _Form("GlobalAveragePool", (0,), 3, drop=("channels_last",)),
    (MICROSOFT, "QLinearSoftmax"): _Form("Softmax", (0,), 3, drop=("opset",)),
}


def fake_quantized(model: ir.Model) -> ir.Model:
    """The same model object, its quantized operators of the main graph in three steps each.

    Example:
        >>> model = fake_quantized(files.load("int8.onnx").clone())
    """
    taken = {str(v.name) for n in model.graph for v in n.outputs} | set(model.graph.initializers)
    for node in list(model.graph):
        form = _FORMS.get((node.domain, node.op_type))
        if form is not None:
            _replace(model.graph, node, form, taken)
    return model


def _replace(graph: ir.Graph, node: ir.Node, form: _Form, taken: set[str]) -> None:
    steps: list[ir.Node] = []
    inputs = [_dequantized(node, at, axis, steps) for at, axis in zip(form.inputs, form.axes, strict=False)]
    if form.bias is not None and form.bias < len(node.inputs) and node.inputs[form.bias] is not None:
        inputs.append(_bias(node, form, steps))
    kept = [a for name, a in node.attributes.items() if name not in form.drop]
    name = str(node.name or "").removesuffix("_quant")
    compute = ir.Node("", form.operator, inputs, kept, name=name, metadata_props=dict(node.metadata_props))
    compute.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    old = node.outputs[0]
    float_name = str(old.name).removesuffix("_quantized")
    compute.outputs[0].name = float_name if float_name not in taken else f"{old.name}_float"
    quantize = _linear("QuantizeLinear", [compute.outputs[0], *node.inputs[form.output : form.output + 2]], name)
    quantize.outputs[0].type = old.type
    graph.insert_before(node, [*steps, compute, quantize])
    old.replace_all_uses_with(quantize.outputs[0], replace_graph_outputs=True)
    quantize.outputs[0].name, old.name = old.name, f"{old.name}_before"
    graph.remove(node, safe=True)


def _dequantized(node: ir.Node, at: int, axis: int, steps: list[ir.Node]) -> ir.Value:
    step = _linear("DequantizeLinear", node.inputs[at : at + 3], f"{node.name}_{at}", axis)
    steps.append(step)
    step.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    return step.outputs[0]


def _bias(node: ir.Node, form: _Form, steps: list[ir.Node]) -> ir.Value:
    first, second = (node.inputs[at + 1] for at in form.inputs)
    scale = ir.Node("", "Mul", [first, second], name=f"{node.name}_bias_scale")
    scale.outputs[0].name = f"{node.name}_bias_scale"
    step = _linear("DequantizeLinear", [node.inputs[form.bias or 0], scale.outputs[0]], f"{node.name}_bias", 0)
    steps += [scale, step]
    for made in (scale, step):
        made.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    return step.outputs[0]


def _linear(operator: str, inputs: Sequence[ir.Value | None], name: str, axis: int = 1) -> ir.Node:
    node = ir.Node("", operator, inputs, [ir.AttrInt64("axis", axis)], name=f"{name}_{operator}")
    node.outputs[0].name = f"{name}_{operator}_output"
    return node
