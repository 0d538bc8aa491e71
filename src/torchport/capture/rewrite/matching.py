"""`match` as a chain of `if`, where its patterns ask for values alone.

Patterns that take a value apart, of sequences, mappings and classes, stay as they are.
"""

from __future__ import annotations

import ast
from typing import TypeVar

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
