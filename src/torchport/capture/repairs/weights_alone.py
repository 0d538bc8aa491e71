"""Operators without an ONNX translation that see nothing but weights: their answers are computed now.

A parametrization makes a weight of other weights, by a matrix exponential say, which ONNX has no word for. It gives the
same weight whatever the input is.
"""

from __future__ import annotations

import copy
from collections.abc import Container
from typing import Any

import torch
from torch._export.passes.lift_constants_pass import ConstantAttrMap, lift_constants_pass
from torch.fx import Node

from torchport.capture.repairs.repair import program_repair

_MISSING = "No ONNX function found"


@program_repair("weights made of weights computed beforehand")
def weights_alone(program: torch.export.ExportedProgram, error: Exception) -> torch.export.ExportedProgram | None:
    """A program in which all that sees nothing but weights is computed. None if there is no such thing.

    Which operators lack a translation is not asked: the error knows them by the names of their parts.
    """
    if _MISSING not in f"{error} {error.__cause__ or ''}":
        return None
    values = _folded(program)
    return _with_constants(program, values) if any(node.op == "call_function" for node in values) else None


def computed(program: torch.export.ExportedProgram, operators: Container[Any]) -> torch.export.ExportedProgram | None:
    """The same, where one of these operators, which make long graphs, sees nothing but weights."""
    calls = [n for n in program.graph.nodes if n.op == "call_function" and n.target in operators]
    if not calls:
        return None
    values = _folded(program)
    return _with_constants(program, values) if any(call in values for call in calls) else None


def _weights(program: torch.export.ExportedProgram) -> dict[Node, Any]:
    """The placeholders that hold weights, without buffers that the model writes to."""
    signature = program.graph_signature
    written = set(signature.buffers_to_mutate.values())
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    constants = signature.inputs_to_lifted_tensor_constants
    found: dict[Node, Any] = {}
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in names and names[node.name] not in written:
            tensors = {**program.constants, **program.state_dict}
            found[node] = tensors[names[node.name]].detach()
        elif node.op == "placeholder" and node.name in constants:
            found[node] = program.constants[constants[node.name]]
    return found


def _folded(program: torch.export.ExportedProgram) -> dict[Node, Any]:
    """The weights, and what every node that sees weights alone gives."""
    values = _weights(program)
    with torch.no_grad():
        for node in program.graph.nodes:
            if node.op == "call_function" and not _draws(node) and all(n in values for n in node.all_input_nodes):
                args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: values[n])
                values[node] = node.target(*args, **kwargs)
    return values


def _draws(node: Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _with_constants(program: torch.export.ExportedProgram, values: dict[Node, Any]) -> torch.export.ExportedProgram:
    """The program with constants in the place of computed nodes that others use."""
    graph, module = program.graph, program.graph_module
    computed = [n for n in graph.nodes if n.op == "call_function" and isinstance(values.get(n), torch.Tensor)]
    for number, node in enumerate(n for n in computed if any(user not in values for user in n.users)):
        name = f"weight_made_of_weights_{number}"
        setattr(module, name, values[node].contiguous())
        with graph.inserting_before(node):
            constant = graph.get_attr(name)
        constant.meta = copy.copy(node.meta)
        node.replace_all_uses_with(constant, delete_user_cb=lambda user: user not in values)
    graph.eliminate_dead_code()
    program.constants.update(lift_constants_pass(module, program.graph_signature, ConstantAttrMap()))
    module.recompile()
    return program
