"""onnxscript's rewrite rules, applied with permission: each change is counted, and can be left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import RULE_NAME_TAG, RewriteRuleSet

from torchport.irtools.traversal import all_nodes
from torchport.optimization.passes.graph_pass import Work


class _Watched:
    """A rule that asks before it changes something."""

    def __init__(self, rule: Any, work: Work) -> None:
        self._rule, self._work = rule, work
        self._operator = _last_operator(rule)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rule, name)

    def try_rewrite(self, model: ir.Model, scope: Any, node: ir.Node, **options: Any) -> Any:
        if self._operator is not None and node.op_type != self._operator:
            return None
        self._work.looks_at(node)
        change = self._rule.try_rewrite(model, scope, node, **options)
        return change if change is not None and self._work.permits(node) else None


def _last_operator(rule: Any) -> str | None:
    """Return the operator of the node at which a rule can match, so that it is not tried at all others."""
    pattern: Any = getattr(rule, "_target_pattern", None)
    known = getattr(pattern, "has_single_output_node", False)
    identifier = pattern.output_node.op_identifier() if known else None
    return None if identifier is None else identifier[1]


def apply_rules(model: ir.Model, work: Work, rules: Iterable[Any]) -> int:
    """Apply rules once to every node, of branches and functions too. Returns how many changes were made."""
    watched: Sequence[Any] = [_Watched(rule, work) for rule in rules]
    count = RewriteRuleSet(watched).apply_to_model(model)
    for node in all_nodes(model) if count else ():
        node.metadata_props.pop(RULE_NAME_TAG, None)
    return count
