"""Quantized operators written as what they mean: dequantize, compute in float, quantize.

``QLinearConv(x, w) = Q(Conv(DQ(x), DQ(w)))`` up to rounding. So written, a layer can be put back to float by leaving
the pairs of Q and DQ around it out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir

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
