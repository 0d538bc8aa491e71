"""Which nodes and values of a model an edit means."""

from __future__ import annotations

import difflib
import fnmatch
import functools
from collections.abc import Callable
from typing import ParamSpec

import onnx_ir as ir

from torchport.errors import InputError
from torchport.irtools.metadata import PROOF
from torchport.irtools.traversal import all_nodes as every_node
from torchport.irtools.types import _operator

P = ParamSpec("P")


def unproves(edit: Callable[P, int]) -> Callable[P, int]:
    """An edit after which the model may answer otherwise: what was proven was proven of another model."""

    @functools.wraps(edit)
    def wrapped(*args: P.args, **named: P.kwargs) -> int:
        changed = edit(*args, **named)
        model = named.get("model", args[0] if args else None)
        if changed and isinstance(model, ir.Model):
            model.metadata_props.pop(PROOF, None)
        return changed

    return wrapped


def chosen_nodes(model: ir.Model, text: str) -> list[ir.Node]:
    """The nodes that a user means: a node's name, an operator (``Relu``, ``devtech::FooOp``), or names with ``*``.

    The domain of an operator may be left out where only one has an operator of that name. A node without a name is
    called by a value it makes.

    Raises:
        InputError: there is none.
    """
    if not text:
        raise InputError("no node is named", next_step="give a node's name, an operator, or names with *")
    nodes = list(every_node(model))
    found = [n for n in nodes if n.name == text] or [n for n in nodes if _is_operator(n, text)]
    if not found and "*" in text:
        found = [n for n in nodes if fnmatch.fnmatchcase(n.name or "", text)]
    found = found or _without_domain(nodes, text) or [n for n in nodes if any(v.name == text for v in n.outputs)]
    if not found:
        known = {n.name or "" for n in nodes} | {_operator(n) for n in nodes}
        close = difflib.get_close_matches(text, sorted(known), n=3, cutoff=0.5)
        raise InputError(
            f"there is no node or operator '{text}' in the model",
            next_step=f"did you mean {', '.join(close)}?" if close else "`torchport inspect` lists what there is",
        )
    return found


def _without_domain(nodes: list[ir.Node], text: str) -> list[ir.Node]:
    """The nodes of an operator whose domain is not said; an error where that is needed to tell two apart."""
    found = [n for n in nodes if n.op_type == text]
    operators = sorted({_operator(n) for n in found})
    if len(operators) > 1:
        raise InputError(f"several operators are called '{text}'", next_step=f"say which: {', '.join(operators)}")
    return found


def _is_operator(node: ir.Node, text: str) -> bool:
    domain, _, kind = text.rpartition("::")
    return node.op_type == kind and node.domain == ("" if domain == "ai.onnx" else domain)


def forget_unused_domains(model: ir.Model) -> None:
    """Take out the imports of domains that no node is of any more."""
    used = {n.domain for n in every_node(model)} | {i[0] for i in model.functions}
    scopes: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for scope in scopes:
        for domain in [d for d in scope.opset_imports if d and d not in used]:
            del scope.opset_imports[domain]
