"""Constant: numbers and strings as attributes of their own came in 12; before, every constant is a tensor."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from torchport.graph.opset_rules import reading
from torchport.graph.opset_rules.builder import Builder, Rules
from torchport.graph.opset_rules.reading import Refusal


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
        tensor: ir.TensorProtocol = ir.StringTensor(np.array(data, dtype=object).reshape(shape), shape=ir.Shape(shape))
    else:
        tensor = ir.tensor(reading.constant_attribute(attr))
    return [b.op("Constant", value=tensor)]


DOWN: Rules = {("Constant", 12): plain_tensor}
UP: Rules = {}
