"""Build nodes in the place of another."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from torchport.tensors import Array


class Steps:
    """Collects the nodes that will stand for `node`. A name of an operator is a method: ``steps.Add(a, 1.0)``.

    Numbers become constants of the node's own type, lists of integers become int64.
    """

    def __init__(self, node: ir.Node) -> None:
        self._node = node
        self._dtype = next(v.dtype for v in node.inputs if v is not None)
        self.nodes: list[ir.Node] = []

    def __getattr__(self, op_type: str) -> Any:
        def build(*inputs: Any, **attributes: Any) -> ir.Value:
            values = [self.value(i) for i in inputs]
            node = ir.node(op_type, values, attributes)
            node.outputs[0].name = f"{self._node.outputs[0].name}.part{len(self.nodes)}"
            node.metadata_props.update(self._node.metadata_props)
            self.nodes.append(node)
            return node.outputs[0]

        return build

    def value(self, given: Any) -> ir.Value | None:
        if given is None or isinstance(given, ir.Value):
            return given
        if isinstance(given, list):
            return self._constant(np.array(given, np.int64))
        assert self._dtype is not None
        return self._constant(np.array(given, self._dtype.numpy()))

    def _constant(self, array: Array) -> ir.Value:
        name = f"{self._node.outputs[0].name}.part{len(self.nodes)}"
        node = ir.node("Constant", [], {"value": ir.tensor(array, name=name)})
        node.outputs[0].name = name
        node.outputs[0].type = ir.TensorType(ir.DataType.from_numpy(array.dtype))
        self.nodes.append(node)
        return node.outputs[0]

    def replace(self, result: ir.Value) -> list[ir.Node]:
        """Put the nodes in the place of the old one, whose first output is `result` from now on."""
        old, graph = self._node.outputs[0], self._node.graph
        assert graph is not None
        graph.insert_before(self._node, self.nodes)
        result.type, result.shape = old.type, old.shape
        old.replace_all_uses_with(result, replace_graph_outputs=True)
        result.name, old.name = old.name, f"{old.name}.replaced"
        graph.remove(self._node, safe=True)
        return self.nodes
