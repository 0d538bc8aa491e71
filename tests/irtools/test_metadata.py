"""The record of an export in a model's metadata, and where nodes come from."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import onnx_ir as ir

import torchport
from torchport.irtools import metadata
from torchport.irtools.metadata import MODULE, OPERATOR, SOURCE, find_origin, module_of, origin_of
from torchport.results import Origin

# Names of domains, of values and of attributes in memory: no keys of a saved model's metadata.
NO_KEYS = {f"torchport.{name}" for name in ("parts", "text", "edits", "unknown_fields", "opset.enlarges")}
NO_KEYS |= {f"torchport.{name}" for name in ("number_in_64_bits", "python_call", "engines")}


def _model(**props: str) -> ir.Model:
    node = ir.node("Relu", [ir.Value(name="x")], name="n", metadata_props=props)
    graph = ir.Graph(node.inputs, node.outputs, nodes=[node], opset_imports={"": 18}, name="g")
    return ir.Model(graph, ir_version=10)


def test_the_origin_of_a_node_is_found_by_its_name() -> None:
    model = _model(**{MODULE: "net.0", SOURCE: "net.py:3", OPERATOR: "aten.relu"})
    assert find_origin(model, "n") == origin_of(model.graph[0]) == Origin("net.0", "net.py:3", "aten.relu")
    assert find_origin(model, "m") is None


def test_torchs_name_for_code_of_its_own_is_no_module() -> None:
    model = _model(**{MODULE: "_empty_nn_module_stack_from_metadata_hook"})
    assert module_of(model.graph[0]) == origin_of(model.graph[0]).module == ""


def test_entries_that_anyone_may_have_written_are_read_as_text_where_they_do_not_parse() -> None:
    model = _model()
    model.metadata_props.update({"torchport.proof": '{"passed": true}', "torchport.route": "[", "author": "me"})
    model.metadata_props[b"torchport.\xff"] = b"\xfe"  # type: ignore[index, assignment]
    assert metadata.read(model) == {"proof": {"passed": True}, "route": "[", "\ufffd": "\ufffd"}


def test_every_key_is_written_in_one_module() -> None:
    """A key spelled twice goes wrong when one of the two changes, and no test notices."""
    root = Path(torchport.__file__).parent
    modules = {str(p.relative_to(root.parent).with_suffix("")).replace("/", ".") for p in root.rglob("*.py")}
    packages = {m.removesuffix(".__init__") for m in modules} | modules
    found = set()
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
            is_key = (
                re.fullmatch(r"torchport\.[a-z_.0-9]*[a-z_0-9]", text) and text not in packages and text not in NO_KEYS
            )
            if is_key and path.name != "metadata.py":
                found.add((path.name, text))
    assert not found
