"""Types and shapes agree: what is stated, and what follows from the operators."""

from __future__ import annotations

import re
from collections.abc import Iterator

import onnx
from onnx import ModelProto, NodeProto

from torchport.graph.faults import Fault
from torchport.graph.lint_rules.nodes import clean
from torchport.graph.lint_rules.scopes import Scope, named, nodes, source, title

_PLACE = re.compile(r"\(op_type:(?P<op>[^,)]*)(?:, node name: (?P<node>.*?))?\): ", re.DOTALL)


def faults(proto: ModelProto, scopes: list[Scope]) -> Iterator[Fault]:
    """onnx names every node that fails in one message; each becomes a fault."""
    by_name = {node.name: node for _, node in nodes(scopes) if node.name}
    operators = {node.op_type for _, node in nodes(scopes)}
    said: set[tuple[str, str]] = set()
    for strict in ({"strict_mode": True}, {"strict_mode": True, "check_type": True}):
        try:
            onnx.shape_inference.infer_shapes(proto, data_prop=True, **strict)
        except Exception as error:  # noqa: BLE001 - whatever inference says is a fault of the model
            for op, name, text in _parts(str(error)):
                inner = op and op not in operators  # a step of an operator that onnx defines by others: not the model's
                follows = "instead is null" in text  # of a type nobody knows: behind an operator of one's own, say
                if text and not inner and not follows and (name or op, text) not in said:
                    said.add((name or op, text))
                    yield _fault(op, by_name.get(name), text)


def _parts(message: str) -> list[tuple[str, str, str]]:
    found = list(_PLACE.finditer(message))
    if not found:
        return [("", "", _plain(message))]
    ends = [m.start() for m in found[1:]] + [len(message)]
    cut = [(m["op"], m["node"] or "", message[m.end() : end]) for m, end in zip(found, ends, strict=True)]
    return [(op, node, _plain(text)) for op, node, text in cut]


def _plain(text: str) -> str:
    text = text.replace("Inference error(s):", "").strip()
    text = re.sub(r"\[\w*(?:Error|Exception)\]\s*", "", text)
    return clean(ValueError(text)) if text else ""


def _fault(op: str, node: NodeProto | None, text: str) -> Fault:
    kind = "type" if re.search(r"\b[Tt]ype\b|typestr", text) else "shape"
    advice = {
        "type": "correct the stated type, or put a Cast before the node",
        "shape": "correct the stated shape, or the weight or input of this node",
    }[kind]
    whom = title(node) if node is not None else f"a node {op}" if op else "the model"
    name, line = (named(node), source(node)) if node is not None else ("", "")
    return Fault("error", kind, f"{whom}: {text}", advice, node=name, source=line)
