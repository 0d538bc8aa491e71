"""Which variables a piece of a function sets, and which of them are read later."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_CHANGES = frozenset({"append", "extend", "insert", "pop", "remove", "clear", "update", "add", "setdefault", "reverse"})


def own_nodes(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Every node below, without the insides of functions and classes defined there."""
    for node in nodes:
        yield node
        if not isinstance(node, _SCOPES):
            yield from own_nodes(ast.iter_child_nodes(node))


def stored(nodes: Sequence[ast.AST]) -> list[str]:
    """The variables that are set or changed in place, in order of appearance."""
    names: dict[str, None] = {}
    for node in own_nodes(nodes):
        if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
            names[node.id] = None
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names[node.name] = None
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            base = _base(node)
            if base is not None:
                names[base] = None
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            method, owner = node.func.attr, node.func.value
            in_place = method.endswith("_") and not method.endswith("__")
            if isinstance(owner, ast.Name) and (method in _CHANGES or in_place):
                names[owner.id] = None
    return [n for n in names if n not in _comprehension_targets(nodes)]


def _base(node: ast.AST) -> str | None:
    while isinstance(node, ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _comprehension_targets(nodes: Sequence[ast.AST]) -> set[str]:
    """Names set by comprehensions alone: they live inside them."""
    inner = {
        name.id
        for node in own_nodes(nodes)
        if isinstance(node, ast.comprehension)
        for name in ast.walk(node.target)
        if isinstance(name, ast.Name)
    }
    outer = {
        name.id
        for node in own_nodes(nodes)
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For, ast.NamedExpr))
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        for name in ast.walk(target)
        if isinstance(name, ast.Name)
    }
    return inner - outer


def loads(*nodes: ast.AST | None) -> set[str]:
    """Every variable that is read, inside nested functions too."""
    return {
        inner.id
        for node in nodes
        if node is not None
        for inner in ast.walk(node)
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load)
    }


def before(block: Sequence[ast.stmt], after: set[str], jumps: tuple[set[str], set[str]] = (set(), set())) -> set[str]:
    """The variables whose values matter at the start of a block.

    Args:
        block: the statements.
        after: those that matter at its end.
        jumps: those that matter after a `break` and after a `continue`.
    """
    live = after
    for statement in reversed(block):
        live = _before(statement, live, jumps)
    return live


def _before(s: ast.stmt, after: set[str], jumps: tuple[set[str], set[str]]) -> set[str]:
    if isinstance(s, ast.Assign):
        plain = {t.id for t in s.targets if isinstance(t, ast.Name)}
        plain |= {e.id for t in s.targets if isinstance(t, ast.Tuple) for e in t.elts if isinstance(e, ast.Name)}
        return (after - plain) | loads(s) | {b for t in s.targets if (b := _base(t)) and not isinstance(t, ast.Name)}
    if isinstance(s, ast.AugAssign):
        base = _base(s.target)
        return after | loads(s) | ({base} if base else set())
    if isinstance(s, (ast.Return, ast.Raise)):
        return loads(s)
    if isinstance(s, ast.Break):
        return jumps[0]
    if isinstance(s, ast.Continue):
        return jumps[1]
    if isinstance(s, ast.If):
        return loads(s.test) | before(s.body, after, jumps) | before(s.orelse, after, jumps)
    if isinstance(s, (ast.While, ast.For)):
        return loop_head(s, after) | before(s.orelse, after, jumps)
    if isinstance(s, ast.With):
        return loads(*s.items) | before(s.body, after, jumps)
    return after | loads(s)


def loop_head(s: ast.While | ast.For, after: set[str]) -> set[str]:
    """The variables whose values matter before each round of a loop."""
    test = loads(s.test) if isinstance(s, ast.While) else loads(s.iter)
    head = after | test
    for _ in range(2):
        inner = before(s.body, head, (after, head))
        if isinstance(s, ast.For):
            inner -= {n.id for n in ast.walk(s.target) if isinstance(n, ast.Name)}
        head = head | inner
    return head


def always_leaves(block: Sequence[ast.stmt]) -> bool:
    """Whether every way through a block ends in a jump."""
    if not block:
        return False
    last = block[-1]
    if isinstance(last, (ast.Return, ast.Raise, ast.Break, ast.Continue)):
        return True
    return isinstance(last, ast.If) and always_leaves(last.body) and always_leaves(last.orelse)


def has_jump(node: ast.AST, *, own_loop: bool = False) -> bool:
    """Whether a statement may leave it: by `return`, or by a `break` or `continue` of a loop around it.

    Args:
        node: the statement.
        own_loop: count `break` and `continue` that belong to `node` itself, a loop.
    """
    if isinstance(node, ast.Return):
        return True
    if isinstance(node, (ast.Break, ast.Continue)):
        return True
    if isinstance(node, _SCOPES):
        return False
    if isinstance(node, (ast.While, ast.For)) and not own_loop:
        return any(isinstance(n, ast.Return) for n in own_nodes(node.body))
    return any(has_jump(child) for child in ast.iter_child_nodes(node))
