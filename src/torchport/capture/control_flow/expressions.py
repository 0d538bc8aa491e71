"""Expressions and `match` statements rewritten as calls of `flow`."""

from __future__ import annotations

import ast
import copy
from typing import TypeVar

from torchport.capture.control_flow.analysis import SIGNS, flow_name, has_slices, is_chosen

FLOW = "__torchport_flow__"  # the name under which rewritten code finds `flow`


def flow_call(name: str, arguments: list[ast.expr], at: ast.AST) -> ast.expr:
    function = ast.copy_location(ast.Attribute(load(FLOW), name, ast.Load()), at)
    function.end_lineno, function.end_col_offset = function.lineno, function.col_offset  # else the last line is blamed
    call = ast.Call(function, arguments, [])
    return ast.fix_missing_locations(ast.copy_location(call, at))


def load(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def assign(name: str, value: ast.expr, at: ast.stmt) -> ast.stmt:
    statement = ast.Assign([ast.Name(name, ast.Store())], value)
    return ast.fix_missing_locations(ast.copy_location(statement, at))


def thunk(body: ast.expr) -> ast.Lambda:
    empty = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    return ast.Lambda(empty, body)


class Expressions(ast.NodeTransformer):
    """Conditional expressions, `and`, `or`, `not`, chained comparisons, comprehensions and conversions."""

    def visit(self, node: ast.AST) -> ast.AST:
        chosen = is_chosen(node)
        node = self.generic_visit(node)
        if not chosen or not isinstance(node, ast.expr):
            return node
        new = self._rewritten(node)
        return ast.fix_missing_locations(ast.copy_location(new, node))

    def _rewritten(self, node: ast.expr) -> ast.expr:
        if isinstance(node, ast.IfExp):
            return flow_call("cond", [node.test, thunk(node.body), thunk(node.orelse)], node)
        if isinstance(node, ast.BoolOp):
            name = "and_" if isinstance(node.op, ast.And) else "or_"
            return flow_call(name, [node.values[0], *map(thunk, node.values[1:])], node)
        if isinstance(node, ast.UnaryOp):
            return flow_call("not_", [node.operand], node)
        if isinstance(node, ast.Compare):
            arguments: list[ast.expr] = [node.left]
            for sign, right in zip(node.ops, node.comparators, strict=True):
                arguments += [ast.Constant(SIGNS[type(sign)]), thunk(right)]
            return flow_call("compare", arguments, node)
        if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
            return self._collected(node)
        if isinstance(node, ast.Subscript) and has_slices(node):
            return flow_call("part", [node.value, _index(node.slice)], node)
        if isinstance(node, ast.Subscript):
            return flow_call("at", [node.value, node.slice], node)
        if isinstance(node, ast.JoinedStr):
            return flow_call("text_", [p.value if isinstance(p, ast.FormattedValue) else p for p in node.values], node)
        assert isinstance(node, ast.Call)
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("item", "tolist"):
            return flow_call(f"{node.func.attr}_", [node.func.value], node)
        function = flow_name(node.func)
        assert function is not None
        node.func = ast.Attribute(load(FLOW), function, ast.Load())
        return node

    def _collected(self, node: ast.ListComp | ast.GeneratorExp) -> ast.expr:
        (generator,) = node.generators
        parts = [node.elt, *generator.ifs]
        if isinstance(generator.target, ast.Name):
            parameter = generator.target.id
        else:
            parameter = "item_"
            parts = [_Unpacked(generator.target, parameter).visit(p) for p in parts]
        arguments = ast.arguments(posonlyargs=[], args=[ast.arg(parameter)], kwonlyargs=[], kw_defaults=[], defaults=[])
        keep = [ast.Lambda(arguments, parts[1] if len(parts) == 2 else ast.BoolOp(ast.And(), parts[1:]))]
        return flow_call(
            "collect", [generator.iter, ast.Lambda(arguments, parts[0]), *(keep if generator.ifs else [])], node
        )


def _index(node: ast.expr) -> ast.expr:
    """What stands between the brackets, as a value."""
    if isinstance(node, ast.Tuple):
        return ast.Tuple([_index(part) for part in node.elts], ast.Load())
    if isinstance(node, ast.Slice):
        return flow_call("slice_", [e or ast.Constant(None) for e in (node.lower, node.upper, node.step)], node)
    return node


class _Unpacked(ast.NodeTransformer):
    """Names of a tuple target as indices into the item: ``i, (a, b)`` gives ``item[0]``, ``item[1][0]``."""

    def __init__(self, target: ast.expr, parameter: str) -> None:
        self._paths: dict[str, ast.expr] = {}
        self._walk(target, load(parameter))

    def _walk(self, target: ast.expr, path: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self._paths[target.id] = path
        elif isinstance(target, (ast.Tuple, ast.List)):
            for number, part in enumerate(target.elts):
                self._walk(part, ast.Subscript(path, ast.Constant(number), ast.Load()))

    def visit_Name(self, node: ast.Name) -> ast.expr:
        path = self._paths.get(node.id)
        return node if path is None else ast.copy_location(copy.deepcopy(path), node)


# `match` as a chain of `if`, where its patterns ask for values alone.
#
# Patterns that take a value apart, of sequences, mappings and classes, stay as they are.

_Node = TypeVar("_Node", ast.expr, ast.stmt)


def without_match(tree: ast.Module) -> ast.Module:
    """A file in which every `match` that can be is an `if`; the tree given is changed."""
    changed: ast.Module = _Chains().visit(tree)
    return ast.fix_missing_locations(changed)


class _Chains(ast.NodeTransformer):
    def visit_Match(self, node: ast.Match) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        if not all(_is_plain(case.pattern) for case in node.cases):
            return node
        name = node.subject.id if isinstance(node.subject, ast.Name) else f"match_{node.lineno}"
        given = [] if isinstance(node.subject, ast.Name) else [_assigned(name, node.subject, node)]
        chain: list[ast.stmt] = []
        for case in reversed(node.cases):
            chain = _choice(case, name, chain)
        return [*given, *chain]


def _is_plain(pattern: ast.pattern) -> bool:
    if isinstance(pattern, ast.MatchOr):
        return all(_is_plain(p) and not _names(p) for p in pattern.patterns)
    if isinstance(pattern, ast.MatchAs):
        return pattern.pattern is None or _is_plain(pattern.pattern)
    return isinstance(pattern, (ast.MatchValue, ast.MatchSingleton))


def _choice(case: ast.match_case, subject: str, otherwise: list[ast.stmt]) -> list[ast.stmt]:
    """One case, and what follows it where it does not fit."""
    names = _names(case.pattern)
    body = [*(_assigned(n, ast.Name(subject, ast.Load()), case.pattern) for n in names), *case.body]
    tests = [t for t in (_test(case.pattern, subject), _renamed(case.guard, names, subject)) if t is not None]
    if not tests:
        return body
    test = tests[0] if len(tests) == 1 else _at(ast.BoolOp(ast.And(), tests), tests[0], tests[-1])
    return [_at(ast.If(test, body, otherwise), case.pattern, case.body[-1])]


def _test(pattern: ast.pattern, subject: str) -> ast.expr | None:
    """What a pattern asks; None if it takes all."""
    if isinstance(pattern, ast.MatchAs):
        return None if pattern.pattern is None else _test(pattern.pattern, subject)
    if isinstance(pattern, ast.MatchOr):
        tests = [_test(p, subject) for p in pattern.patterns]
        asked = [t for t in tests if t is not None]
        return _at(ast.BoolOp(ast.Or(), asked), pattern, pattern) if len(asked) == len(tests) else None
    given = ast.Name(subject, ast.Load())
    if isinstance(pattern, ast.MatchSingleton):
        return _at(ast.Compare(given, [ast.Is()], [ast.Constant(pattern.value)]), pattern, pattern)
    assert isinstance(pattern, ast.MatchValue)
    return _at(ast.Compare(given, [ast.Eq()], [pattern.value]), pattern, pattern)


def _names(pattern: ast.pattern) -> list[str]:
    """The variables a pattern sets: all of them to the whole."""
    return [p.name for p in ast.walk(pattern) if isinstance(p, ast.MatchAs) and p.name is not None]


def _renamed(guard: ast.expr | None, names: list[str], subject: str) -> ast.expr | None:
    """The condition of a case, which is asked before the variables are set."""
    for node in ast.walk(guard) if guard is not None else ():
        if isinstance(node, ast.Name) and node.id in names:
            node.id = subject
    return guard


def _assigned(name: str, value: ast.expr, at: ast.AST) -> ast.stmt:
    return ast.copy_location(ast.Assign([ast.Name(name, ast.Store())], value), at)


def _at(node: _Node, first: ast.AST, last: ast.AST) -> _Node:
    """A new node in the place of old ones."""
    ast.copy_location(node, first)
    node.end_lineno, node.end_col_offset = last.end_lineno, last.end_col_offset  # type: ignore[attr-defined]
    return node
