"""Tensors written out inside a branch or a loop: `x.new_tensor(0.0)`, `torch.tensor([1, 2])`, `x[:, [2, 0]]`.

In the graph of a branch torch.export keeps them as constants, and torch.onnx, which takes the program apart once more,
makes fake tensors of those: ".numpy() is not supported for tensor subclasses". They become calls of torchport::literal,
whose arguments are the numbers (operators/library/literal.py).

torch 2.13.
"""

from __future__ import annotations

import torch

from torchport.operators.library import own_operators

WRITTEN_OUT = "tensors written out in branches"


def kept(program: torch.export.ExportedProgram) -> bool:
    """Put the numbers of such tensors into the graph; whether there were any."""
    found = False
    for part in program.graph_module.modules():
        if isinstance(part, torch.fx.GraphModule) and part is not program.graph_module:
            found |= _kept_in(part)
    return found


def _kept_in(part: torch.fx.GraphModule) -> bool:
    constants = [(n, getattr(part, str(n.target), None)) for n in part.graph.find_nodes(op="get_attr")]
    written = [(n, tensor) for n, tensor in constants if isinstance(tensor, torch.Tensor) and not tensor.is_complex()]
    for node, tensor in written:
        with part.graph.inserting_before(node):
            call = part.graph.call_function(*own_operators.call_for(tensor))
        call.meta = node.meta
        node.replace_all_uses_with(call)
        part.graph.erase_node(node)
    for name in {str(node.target) for node, _ in written}:
        delattr(part, name)  # else it counts as a weight
    if written:
        part.recompile()
    return bool(written)
