"""Liveness of variables, and the nodes of a function that must be rewritten."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

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


# Which nodes of a function to rewrite: what stands at the lines that a capture stumbled over.

_CALLS = {
    "bool": "bool_",
    "int": "int_",
    "float": "float_",
    "len": "len_",
    "min": "min_",
    "max": "max_",
    "range": "range_",
    "zip": "zip_",
    "enumerate": "enumerate_",
    "reversed": "reversed_",
    "list": "list_",
    "tuple": "list_",
    "sum": "sum_",
    "any": "any_",
    "all": "all_",
    "getattr": "getattr_",
    "str": "str_",
    "round": "round_",
    "divmod": "divmod_",
}
_OF_MATH = {"sqrt": "sqrt_", "floor": "floor_", "ceil": "ceil_", "trunc": "trunc_"}


SIGNS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.In: "in",
    ast.NotIn: "not in",
}


Function = ast.FunctionDef

_CHOICES = (ast.If, ast.While, ast.IfExp)


def sites(function: Function, lines: set[int]) -> set[int]:
    """The ids of the nodes that the lines ask to rewrite.

    Where there are any, every `.item()` and `float()` is one too: a branch takes tensors, and no numbers of its own. So
    is every `len()`: of what a branch found among values it is known to the running model only.
    """
    own = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    own |= {a.arg for a in ast.walk(function) if isinstance(a, ast.arg)}  # variables called `max` or `len`
    chosen = {id(n) for n in ast.walk(function) if _is_site(n, lines) and not _is_call(n, own)}
    if not chosen:
        return chosen
    further = [n for n in ast.walk(function) if _is_method(n, "item") or _is_call(n, {"float", "len"} - own)]
    return chosen | {id(n) for n in further}


def alike(function: Function, line: int) -> set[int]:
    """The lines that ask what this one asks: the same test again; of an assertion, every other one; of a loop over a
    range, the other ranges, for what they run to is likely to be no more known."""
    lines = {line} | lines_asking(function, tests_at(function, line))
    if any(isinstance(n, ast.Assert) and _meets(n.test, {line}) for n in ast.walk(function)):
        lines |= assertions(function)
    ranges = [n.iter for n in ast.walk(function) if isinstance(n, ast.For) and _is_open_range(n.iter)]
    return lines | ({r.lineno for r in ranges} if any(_meets(r, {line}) for r in ranges) else set())


def tests_at(function: Function, line: int) -> set[str]:
    """What is asked at a line."""
    asking = [n for n in ast.walk(function) if isinstance(n, (*_CHOICES, ast.Assert))]
    return {ast.dump(n.test) for n in asking if _meets(n.test, {line})}


def lines_asking(function: Function, tests: set[str]) -> set[int]:
    """The lines of a function at which one of these tests is asked."""
    asking = [n for n in ast.walk(function) if isinstance(n, _CHOICES)]
    return {n.test.lineno for n in asking if any(ast.dump(part) in tests for part in ast.walk(n.test))}


def assertions(function: Function) -> set[int]:
    """The lines of all assertions."""
    return {n.test.lineno for n in ast.walk(function) if isinstance(n, ast.Assert)}


def _is_open_range(node: ast.expr) -> bool:
    """`range` of something else than plain numbers."""
    called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range"
    return called and not all(isinstance(a, ast.Constant) for a in node.args)  # type: ignore[attr-defined]


def _is_call(node: ast.AST, names: set[str]) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names


def _is_method(node: ast.AST, name: str) -> bool:
    """A call of a method without arguments."""
    if not isinstance(node, ast.Call) or node.args or node.keywords:
        return False
    return isinstance(node.func, ast.Attribute) and node.func.attr == name


def _is_site(node: ast.AST, lines: set[int]) -> bool:
    if isinstance(node, (ast.If, ast.While, ast.Assert)):
        return _meets(node.test, lines)
    if isinstance(node, ast.For):
        return _meets(node.iter, lines)
    return _is_expression_site(node) and _meets(node, lines)


def _is_expression_site(node: ast.AST) -> bool:
    if isinstance(node, (ast.IfExp, ast.BoolOp)):
        return True
    if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
        return len(node.generators) == 1
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not)
    if isinstance(node, ast.Compare):
        members = isinstance(node.ops[0], (ast.In, ast.NotIn))
        return (len(node.ops) > 1 or members) and all(type(op) in SIGNS for op in node.ops)
    if isinstance(node, ast.Subscript):
        picks = not isinstance(node.slice, (ast.Constant, ast.Slice, ast.Tuple))
        return isinstance(node.ctx, ast.Load) and (picks or has_slices(node))
    if isinstance(node, ast.JoinedStr):
        return all(isinstance(p, ast.Constant) or _is_plain(p) for p in node.values)
    return isinstance(node, ast.Call) and (flow_name(node.func) is not None or _is_method(node, "tolist"))


def has_slices(node: ast.Subscript) -> bool:
    """`x[:n]`, `x[..., 2:]`"""
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    return any(isinstance(p, ast.Slice) for p in parts)


def _is_plain(part: ast.expr) -> bool:
    """A part of an f-string without a format of its own."""
    return isinstance(part, ast.FormattedValue) and part.conversion == -1 and part.format_spec is None


def flow_name(function: ast.expr) -> str | None:
    if isinstance(function, ast.Name):
        return _CALLS.get(function.id)
    module, _, name = ast.unparse(function).rpartition(".")
    return _OF_MATH.get(name) if module == "math" else None


def _meets(node: Any, lines: set[int]) -> bool:
    return any(line in lines for line in range(node.lineno, (node.end_lineno or node.lineno) + 1))


def choose(node: ast.AST) -> None:
    """Mark a node to be rewritten; copies of it are marked too."""
    node.chosen = True  # type: ignore[attr-defined]


def is_chosen(node: ast.AST) -> bool:
    return getattr(node, "chosen", False)
