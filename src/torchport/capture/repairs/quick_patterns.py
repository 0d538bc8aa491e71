"""Patterns of the ONNX optimizer tried only at nodes of their own operator.

onnxscript tries each of its patterns at each node, and for a pattern with several outputs goes through the whole graph
before it looks at the node: with the number of nodes squared, half of an export of some thousands of them. Where the
operator of a pattern's first output is not the node's, it cannot match.

onnxscript 0.7; `SimplePatternMatcher.match` in onnxscript/rewriter/_matcher.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import _basics
from onnxscript.rewriter._matcher import SimplePatternMatcher


@contextlib.contextmanager
def quick_patterns() -> Iterator[None]:
    """Hold while a program is translated."""
    matchers: Any = SimplePatternMatcher
    own = matchers.match

    def match(matcher: Any, model: ir.Model, graph: ir.Graph | ir.Function, node: ir.Node, **options: Any) -> Any:
        wanted = matcher.pattern.output_nodes[0]._op_identifier  # domain, operator, overload; None if it may be several
        if wanted is not None and wanted[1] != node.op_type:
            return _basics.MatchResult().fail("another operator", node)
        return own(matcher, model, graph, node, **options)

    matchers.match = match
    try:
        yield
    finally:
        matchers.match = own
