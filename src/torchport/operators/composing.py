"""Operators given as plain PyTorch: a program's calls of them are replaced before it is translated.

A translation builds ONNX nodes; a composition is a PyTorch function of operators that have translations. It is captured
as the model was, so it sees symbolic sizes and must not look at values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch


def composed(
    program: torch.export.ExportedProgram, compositions: Mapping[Any, Callable[..., Any]]
) -> torch.export.ExportedProgram:
    """The program with its calls of these operators replaced; itself if it has none."""
    used = {_name(node.target) for node in operator_calls(program.graph_module)}
    wanted = {op: function for op, function in compositions.items() if _name(op) in used}
    return program.run_decompositions(wanted) if wanted else program


def operator_calls(module: torch.nn.Module) -> Iterator[torch.fx.Node]:
    """Every call of an operator, in branches and loops too."""
    for part in module.modules():
        if isinstance(part, torch.fx.GraphModule):
            yield from (n for n in part.graph.nodes if n.op == "call_function" and hasattr(n.target, "_schema"))


def _name(operator: Any) -> str:
    """With its overload, and the same for the form that writes in place."""
    schema = operator._schema
    return f"{schema.name.removesuffix('_')}.{schema.overload_name}"
