"""Which tensors of a model in lower precision carry those of its float original.

Converters to float16 and quantizers keep most names. What they put in between has names of its own, and an activation
that quantizing does by itself is left out. Where hardly a name is the same, as in files of two exporters, the models
are matched instead.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from torchport.comparing.recorded import is_tensor
from torchport.inspection.matching.matcher import beyond_doubt, match
from torchport.irtools.names import Names

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
