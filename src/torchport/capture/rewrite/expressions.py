"""Expressions as calls of `flow`: conditional ones, `and`, `or`, `not`, comprehensions, conversions, picks."""

from __future__ import annotations

import ast
import copy

from torchport.capture.rewrite.sites import SIGNS, flow_name, has_slices, is_chosen

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
