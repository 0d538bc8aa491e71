"""Write on each ONNX node where it comes from, in a few short entries of its metadata.

torch's routes leave a stack trace, scopes and the operator in forms of their own, some of them kilobytes a node. They
are read once and replaced.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import onnx_ir as ir

from torchport.capture.source_lines import line_of_stack
from torchport.irtools.metadata import CALL, MODULE, OPERATOR, SOURCE
from torchport.irtools.traversal import all_nodes
from torchport.results import Origin

if TYPE_CHECKING:
    import torch


_TORCH = "pkg.torch.onnx."
# torch names a Python function by its repr, which holds an address: <function sym_float at 0x7f...>
_FUNCTION = re.compile(r"<(?:built-in )?function ([\w.]+)(?: at 0x[0-9a-f]+)?>")
_PART = re.compile(r"_split_\d+$")  # what torch's optimizer calls the parts of a tensor
_NO_MODULE = "_empty_nn_module_stack"  # what torch writes where it does not know


def complete_metadata(model: ir.Model, program: torch.export.ExportedProgram) -> None:
    """Give what torch leaves on nodes to those that its optimizer made, told by the names of their outputs."""
    calls = {node.name: node for node in program.graph.nodes if node.op == "call_function"}
    for node in all_nodes(model):
        if _TORCH + "name_scopes" in node.metadata_props:
            continue
        names = [_PART.sub("", str(v.name)) for v in node.outputs]
        call = next((calls[name] for name in names if name in calls), None)
        if call is not None:
            modules = [path for path, _ in call.meta.get("nn_module_stack", {}).values()]
            node.metadata_props[_TORCH + "name_scopes"] = repr([*modules, call.name])
            node.metadata_props[_TORCH + "class_hierarchy"] = repr([str(call.target)])
            node.metadata_props[_TORCH + "stack_trace"] = call.meta.get("stack_trace") or ""


def write_origins(model: ir.Model) -> None:
    """Replace what the routes left on every node by torchport's entries."""
    for node in all_nodes(model):
        origin = _from_metadata(node) or _from_doc(node)
        node.doc_string = None
        for key in [k for k in node.metadata_props if k.startswith(_TORCH) or k == "namespace"]:
            del node.metadata_props[key]
        for key, text in ((MODULE, origin.module), (SOURCE, origin.source), (OPERATOR, origin.operator)):
            if text:
                node.metadata_props[key] = text
    for value in [*model.graph.inputs, *model.graph.outputs, *model.graph.initializers.values()]:
        value.metadata_props.clear()
    for key in [k for k in model.graph.metadata_props if k.startswith(_TORCH)]:
        del model.graph.metadata_props[key]


def _from_metadata(node: ir.Node) -> Origin | None:
    """What the `export` route leaves: ``['', 'model', 'model.fc', 'linear']`` and the classes beside it."""
    scopes = node.metadata_props.get(_TORCH + "name_scopes")
    if scopes is None:
        return None
    path = ast.literal_eval(scopes)
    classes = ast.literal_eval(node.metadata_props.get(_TORCH + "class_hierarchy", "[]"))
    module = _without_prefix(path[-2]) if len(path) > 1 and not path[-2].startswith(_NO_MODULE) else ""
    node.metadata_props[CALL] = path[-1]
    stack = node.metadata_props.get(_TORCH + "stack_trace", "")
    return Origin(module, line_of_stack(stack), _FUNCTION.sub(r"\1", classes[-1]) if classes else "")


def _from_doc(node: ir.Node) -> Origin:
    """What the TorchScript routes leave: a node name that is a path, the stack as its doc string."""
    parts = (node.name or "").split("/")
    # "/model/layer/layer.0/Conv": each part repeats the ones above it, the last is the operator.
    module = ""
    for part in parts[1:-1]:
        module = part if not module or part.startswith(module + ".") else f"{module}.{part}"
    return Origin(_without_prefix(module), line_of_stack(node.doc_string or ""), "")


def _without_prefix(module: str) -> str:
    return "" if module == "model" else module.removeprefix("model.")
