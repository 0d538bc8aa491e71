"""Find a pattern that is a Python function, with onnxscript's matcher."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from torchport.irtools import node_reader
from torchport.irtools.names import where
from torchport.irtools.traversal import Match, Scope, in_order, is_constant, scoped_nodes


def python_matches(model: ir.Model, what: Callable[..., Any], blocked: list[str]) -> list[Match]:
    """Where onnxscript finds a pattern in the style of its rewriter."""
    from onnxscript.rewriter import pattern

    given = what if isinstance(what, pattern.RewriteRule) else pattern.RewriteRule(what, lambda *_, **__: None)
    rules = list(given.commute())
    found: list[Match] = []
    taken: set[ir.Node] = set()
    with _constants_shown(model):
        for scope, node in scoped_nodes(model):
            match = None if node in taken else _match_at(rules, model, scope, node, blocked)
            if match is not None and not taken.intersection(match.nodes):
                found.append(match)
                taken.update(match.nodes)
    return found


def _match_at(rules: list[Any], model: ir.Model, scope: Scope, node: ir.Node, blocked: list[str]) -> Match | None:
    body: Any = node.graph if node.graph is not getattr(scope, "graph", None) else scope
    for rule in rules:
        match = rule.match(model, body, node)
        if match and _tells_zero(match):
            inputs = {k: v for k, v in match.bindings.items() if v is None or isinstance(v, ir.Value)}
            attributes = {k: v for k, v in match.bindings.items() if isinstance(v, ir.Attr)}
            nodes = in_order(match.nodes)
            return Match(nodes, inputs, tuple(match.outputs), attributes, scope, dict(match.bindings))
        if match is not None and not match and "other uses" in str(match.reason):
            blocked.append(f"what is made before {where(node)} is used elsewhere too")
    return None


def _tells_zero(match: Any) -> bool:
    """onnxscript takes 1e-8 for zero, and a weight that the caller may give for a constant."""
    from onnxscript.rewriter import pattern

    for wanted, value in match.value_bindings.items():
        if isinstance(wanted, pattern.Constant) and value is not None:
            numbers = wanted.value if isinstance(wanted.value, (list, tuple)) else [wanted.value]
            found = value.const_value.numpy().reshape(-1).tolist()
            if value.is_graph_input() or any(w in (0, 1) and w != f for w, f in zip(numbers, found, strict=True)):
                return False
    return True


class _constants_shown:  # noqa: N801  (a context manager, used like a function)
    """onnxscript looks for a constant in the value; those of Constant nodes are put there for as long as it looks."""

    def __init__(self, model: ir.Model) -> None:
        every = (n.outputs[0] for _, n in scoped_nodes(model) if is_constant(n))
        self._values = [v for v in every if v.const_value is None]

    def __enter__(self) -> None:
        for value in self._values:
            array = node_reader.constant(value)
            if array is not None and array.dtype != object:
                value.const_value = ir.tensor(array, name=value.name)

    def __exit__(self, *_: object) -> None:
        for value in self._values:
            value.const_value = None
