"""Select the nodes and values that an edit applies to: by name, by operator or by pattern."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir

from torchport.editing.fragment import Fragment, is_text, parse
from torchport.editing.patterns import matches, python_matches
from torchport.errors import InputError
from torchport.irtools.names import check_owned, unknown, where
from torchport.irtools.traversal import Match, Scope, all_nodes, scoped_nodes, subgraphs
from torchport.irtools.types import operator_name

Nodes = str | ir.Node | Sequence[str | ir.Node]
Tensor = str | ir.Value


def chosen_nodes(model: ir.Model, given: Nodes) -> list[ir.Node]:
    """Return the nodes that a user means.

    Args:
        model: where they are.
        given: a node's name, an operator (``Relu``, ``devtech::FooOp``), names with ``*``, a node of the model, or a
            list of these. The domain of an operator may be left out where only one has an operator of that name. A node
            without a name is called by a value it makes.

    Raises:
        InputError: there is none.
    """
    if isinstance(given, ir.Node):
        check_owned(model, given)
        return [given]
    if not isinstance(given, str):
        check_owned(model, *(one for one in given if isinstance(one, ir.Node)))
        found = [[one] if isinstance(one, ir.Node) else _called(model, one) for one in given]
        if not found:
            raise _unnamed()
        return list(dict.fromkeys(node for some in found for node in some))
    return _called(model, given)


def tensor_name(model: ir.Model, given: Tensor) -> str:
    """Return the name of a tensor that is given by its name or as a value of the model."""
    if isinstance(given, ir.Value):
        check_owned(model, given)
        return str(given.name)
    return given


def title(given: Nodes) -> str:
    """Return how an error names the nodes that a user gave."""
    if isinstance(given, ir.Node):
        return where(given)
    return f"'{given}'" if isinstance(given, str) else ", ".join(map(title, given))


def _unnamed() -> InputError:
    return InputError("no node is named", next_step="give a node's name, an operator, or names with *")


def _called(model: ir.Model, text: str) -> list[ir.Node]:
    if not text:
        raise _unnamed()
    nodes = list(all_nodes(model))
    found = [n for n in nodes if n.name == text] or [n for n in nodes if _is_operator(n, text)]
    if not found and "*" in text:
        found = [n for n in nodes if fnmatch.fnmatchcase(n.name or "", text)]
    found = found or _without_domain(nodes, text) or [n for n in nodes if any(v.name == text for v in n.outputs)]
    if not found:
        known = {n.name or "" for n in nodes} | {operator_name(n) for n in nodes}
        raise unknown(text, "node or operator", known)
    return found


def _without_domain(nodes: list[ir.Node], text: str) -> list[ir.Node]:
    """The nodes of an operator whose domain is not said; an error where that is needed to tell two apart."""
    found = [n for n in nodes if n.op_type == text]
    operators = sorted({operator_name(n) for n in found})
    if len(operators) > 1:
        raise InputError(f"several operators are called '{text}'", next_step=f"say which: {', '.join(operators)}")
    return found


def _is_operator(node: ir.Node, text: str) -> bool:
    domain, _, kind = text.rpartition("::")
    return node.op_type == kind and node.domain == ("" if domain == "ai.onnx" else domain)


def forget_unused_domains(model: ir.Model) -> None:
    """Take out the imports of domains that no node is of any more."""
    used = {n.domain for n in all_nodes(model)} | {i[0] for i in model.functions}
    scopes: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for scope in scopes:
        for domain in [d for d in scope.opset_imports if d and d not in used]:
            del scope.opset_imports[domain]


# Places in a model where some nodes are: named ones, or a pattern in ONNX text or in Python.
#
# onnxscript has a matcher, which patterns in Python are given to. Text has one of its own: it follows the pattern in
# both directions, so several outputs cost no search over all pairs of nodes, and it tells 1e-8 from zero.


def find(model: ir.Model, what: Nodes | Callable[..., Any]) -> list[Match]:
    """The places that names, nodes, a text or a function mean. No node is in two of them.

    Raises:
        InputError: there is none, or what is between the nodes of each is used elsewhere.
    """
    blocked: list[str] = []
    if callable(what):
        name, found = "the function", python_matches(model, what, blocked)
    elif isinstance(what, str) and is_text(what):
        pattern = parse(what)
        _check_pattern(pattern)
        name, found = pattern.title, matches(model, pattern, blocked)
    else:
        scopes = {id(n): scope for scope, n in scoped_nodes(model)}
        return [_single(node, scopes[id(node)]) for node in chosen_nodes(model, what)]
    if not found:
        raise _none(name, blocked)
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
