"""Constant: numbers and strings as attributes of their own came in 12, other tensors than of floats in 9."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from torchport.irtools import node_reader
from torchport.irtools.builder import Builder, Rules
from torchport.irtools.node_reader import Refusal


def plain_tensor(node: ir.Node, b: Builder) -> list[ir.Value] | None:
    attr = next(iter(node.attributes.values()), None)
    if attr is None or attr.is_ref():
        raise Refusal("its value is set by the caller of the function")
    if attr.name in ("value", "sparse_value"):
        return None
    if attr.name.startswith("value_string"):
        strings = attr.value if attr.name.endswith("s") else [attr.value]
        data = [s.encode() if isinstance(s, str) else s for s in strings]
        shape = (len(data),) if attr.name.endswith("s") else ()
        text = np.array(data, dtype=object).reshape(shape)
        tensor: ir.TensorProtocol = ir.StringTensor(text, shape=ir.Shape(shape))
    else:
        tensor = ir.tensor(np.asarray(node_reader.constant_attribute(attr)))
    return [b.constant_tensor(tensor)]


def initializer_unless_float(node: ir.Node, b: Builder) -> list[ir.Value]:
    """Below 9 a Constant holds floats alone; an initializer holds anything."""
    value = node_reader.attribute(node, "value")
    if value is None:
        raise Refusal("it holds no plain tensor")
    return [b.constant_tensor(value)]


DOWN: Rules = {("Constant", 12): plain_tensor, ("Constant", 9): initializer_unless_float}
UP: Rules = {}
