"""A float model made ready for a quantizer, and a quantized one given back what the quantizer lost.

Quantizers find nodes by name, infer shapes anew and stop where they differ from those a file states, which torch's
exports do ("Inferred shape and existing shape differ"); and they put nodes in place of others without saying where
they come from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from torchport.errors import OptionError, QuantizationError
from torchport.files import onnx_files
from torchport.inputs.arrays import memory
from torchport.irtools import metadata
from torchport.irtools.names import FreshNames, name_of
from torchport.irtools.traversal import all_nodes, inlined, opset_of
from torchport.irtools.types import operator_name
from torchport.opset.convert import convert
from torchport.terminal import human_bytes

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
_QUANTIZED = {
    *(QUANTIZE, DEQUANTIZE, "DynamicQuantizeLinear", "ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul"),
    *("DynamicQuantizeMatMul", "DynamicQuantizeLSTM", "MatMulNBits", "MatMulBnb4", "QGemm", "QAttention", "QMoE"),
    *("MatMulIntegerToFloat", "GatherBlockQuantized"),
}
_COPIES = 4  # of the weights that a quantizer has in memory at once


def prepared(model: ir.Model, opset: int = 13) -> ir.Model:
    """Return a copy that quantizers take: names for all nodes, no functions, no stated shapes inside.

    Args:
        model: the float model.
        opset: the oldest that can hold the quantized one.

    Raises:
        QuantizationError: it is quantized already, or has nothing that could be.
        OptionError: its weights do not fit into memory as often as a quantizer needs them.
        OpsetError: it cannot be carried to that opset.
    """
    _check_float(model)
    _check_memory(model)
    whole = inlined(model)
    whole = whole if whole is not model else model.clone()
    if (opset_of(whole) or opset) < opset:
        whole = convert(whole, opset)
    names = FreshNames(whole)
    seen: set[str] = set()
    for node in all_nodes(whole):
        if not node.name or node.name in seen:
            node.name = names.fresh(name_of(node) or node.op_type)
        seen.add(str(node.name))
    _forget_shapes(whole)
    return whole


def _check_float(model: ir.Model) -> None:
    done = [node for node in all_nodes(model) if node.op_type in _QUANTIZED]
    if done:
        how = metadata.read(model).get(metadata.QUANTIZATION.removeprefix(metadata.PREFIX))
        told = f"torchport quantized it: {how['scheme']}" if isinstance(how, Mapping) and "scheme" in how else ""
        raise QuantizationError(
            f"the model is quantized already: {len(done)} nodes such as {operator_name(done[0])} '{name_of(done[0])}'",
            where=told or None,
            next_step="give the float model it was made from",
        )


def _check_memory(model: ir.Model) -> None:
    size, there = onnx_files.weight_bytes(model), memory()
    if _COPIES * size > there:
        raise OptionError(
            f"the weights take {human_bytes(size)}; a quantizer holds them {_COPIES} times over, "
            f"and this machine has {human_bytes(there)}",
            next_step="quantize it on a larger machine, or split it first: torchport split",
        )


def _forget_shapes(model: ir.Model) -> None:
    kept = {*model.graph.inputs, *model.graph.outputs}
    for node in model.graph.all_nodes():
        for value in node.outputs:
            if value not in kept:
                value.shape = None
    for value in (v for graph in model.graphs() for v in graph.initializers.values()):
        if value not in kept:  # a quantizer transposes weights, and stated shapes would contradict them
            value.shape = value.type = None


def restore(quantized: ir.Model, original: ir.Model, record: Mapping[str, Any]) -> None:
    """Give a quantized model the names, metadata and origins of the float one, and the record of how it was made."""
    _restore_interface(quantized, original)
    story = {k: v for k, v in original.metadata_props.items() if k not in (metadata.PROOF, metadata.UNPROVEN)}
    quantized.metadata_props.clear()
    quantized.metadata_props.update(story)
    quantized.metadata_props[metadata.QUANTIZATION] = json.dumps(record, sort_keys=True)
    quantized.producer_name, quantized.producer_version = original.producer_name, original.producer_version
    quantized.doc_string = original.doc_string
    quantized.graph.name = original.graph.name
    _restore_origins(quantized, original)


def _restore_interface(quantized: ir.Model, original: ir.Model) -> None:
    for ours, theirs in (
        (original.graph.inputs, quantized.graph.inputs),
        (original.graph.outputs, quantized.graph.outputs),
    ):
        known = {v.name: v for v in ours}
        for value in theirs:
            if value.name in known:
                value.shape, value.type = known[value.name].shape, known[value.name].type


def _restore_origins(quantized: ir.Model, original: ir.Model) -> None:
    """Copy what is known of nodes by name; a new node has the origin of the one whose data it changes."""
    by_name = {str(n.name): n for n in all_nodes(original)}
    by_tensor = {str(v.name): n for n in all_nodes(original) for v in n.outputs}
    for node in all_nodes(quantized):
        known = by_name.get(str(node.name)) or next(
            (by_tensor[str(v.name)] for v in node.outputs if v.name in by_tensor), None
        )
        if known is not None:
            node.metadata_props.update({k: v for k, v in known.metadata_props.items() if k not in node.metadata_props})
    for node in [n for n in all_nodes(quantized) if metadata.SOURCE not in n.metadata_props]:
        near = next((n for n in _neighbors(node) if metadata.SOURCE in n.metadata_props), None)
        if near is not None:
            origin = {k: near.metadata_props[k] for k in _ORIGIN if k in near.metadata_props}
            node.metadata_props.update(origin)


_ORIGIN = (metadata.MODULE, metadata.SOURCE, metadata.OPERATOR, metadata.CALL)


def _neighbors(node: ir.Node) -> list[ir.Node]:
    """Return the nodes that take what this one gives, and those that make what it takes."""
    makers = [v.producer() for v in node.inputs if v is not None]
    takers = [use for value in node.outputs for use in value.consumers()]
    return [
        *takers,
        *(m for m in makers if m is not None),
        *(u for t in takers for v in t.outputs for u in v.consumers()),
    ]
