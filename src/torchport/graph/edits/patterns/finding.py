"""Places in a model where some nodes are: named ones, or a pattern in ONNX text or in Python.

onnxscript has a matcher, which patterns in Python are given to. Text has one of its own: it follows the pattern in both
directions, so several outputs cost no search over all pairs of nodes, and it tells 1e-8 from zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from torchport.errors import InputError
from torchport.graph.edits.choosing import chosen_nodes
from torchport.graph.edits.nodes_text import EXAMPLE, Fragment, is_text, parse
from torchport.graph.edits.patterns.python import python_matches
from torchport.graph.edits.patterns.text import matches
from torchport.irtools.traversal import Match, Scope, scoped_nodes, subgraphs


def find(model: ir.Model, what: str | Callable[..., Any]) -> list[Match]:
    """The places that a name, a text or a function means. No node is in two of them.

    Raises:
        InputError: there is none, or what is between the nodes of each is used elsewhere.
    """
    if isinstance(what, str) and not is_text(what):
        scopes = {id(n): scope for scope, n in scoped_nodes(model)}
        return [_single(node, scopes[id(node)]) for node in chosen_nodes(model, what)]
    if not isinstance(what, str) and not callable(what):
        raise InputError(f"{what!r} is no name, text or function", next_step=f"write a pattern like {EXAMPLE}")
    blocked: list[str] = []
    if isinstance(what, str):
        pattern = parse(what)
        _check_pattern(pattern)
        title, found = pattern.title, matches(model, pattern, blocked)
    else:
        title, found = "the function", python_matches(model, what, blocked)
    if not found:
        raise _none(title, blocked)
    return found


def blocked_places(model: ir.Model, what: str) -> list[str]:
    """Why `find` passes over places that a pattern in text matches, a reason for each; none for a name."""
    if not is_text(what):
        return []
    pattern = parse(what)
    _check_pattern(pattern)
    blocked: list[str] = []
    matches(model, pattern, blocked)
    return list(dict.fromkeys(blocked))


def _single(node: ir.Node, scope: Scope) -> Match:
    inputs = {f"#{index}": value for index, value in enumerate(node.inputs)}
    return Match((node,), inputs, tuple(node.outputs), dict(node.attributes), scope)


def _none(title: str, blocked: list[str]) -> InputError:
    if blocked:
        count = len(set(blocked))
        some = "a place matches" if count == 1 else f"{count} places match"
        return InputError(
            f"{some} {title}, but cannot be replaced: {blocked[0]}",
            next_step="make that value an output of the pattern too",
        )
    return InputError(
        f"nothing in the model matches {title}", next_step="`torchport inspect --node` shows a node and its neighbors"
    )


def _check_pattern(pattern: Fragment) -> None:
    if not pattern.graph.num_nodes():
        raise InputError(f"the pattern {pattern.title} has no nodes", next_step="write the nodes to look for")
    if any(subgraphs(node) for node in pattern.graph):
        raise InputError(
            f"the pattern {pattern.title} has a branch or a loop in it", next_step="name such a node instead"
        )
