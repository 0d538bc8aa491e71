"""The source of a function that ran, new code made from it, and the plain objects it can reach."""

from __future__ import annotations

import ast
import contextlib
import functools
import linecache
import sys
from functools import cache
from types import CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import torch

from torchport.capture.control_flow.dynamic_lists import OpenList
from torchport.capture.control_flow.expressions import without_match
from torchport.errors import RewriteError


def function_of(code: CodeType) -> tuple[ast.FunctionDef, str]:
    """The definition behind a code object, and the class around it, if any."""
    lines = linecache.getlines(code.co_filename)
    if not lines:
        raise RewriteError(f"the source of {code.co_qualname} is not to be had")
    for node, owner in _functions("".join(lines)):
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        if node.name == code.co_name and first == code.co_firstlineno:
            return node, owner
    raise RewriteError(f"{code.co_qualname} is not a function defined with `def` in its source")


@cache
def _functions(text: str) -> list[tuple[ast.FunctionDef, str]]:
    """Every function of a file with the class it is a method of."""
    found: list[tuple[ast.FunctionDef, str]] = []

    def walk(node: ast.AST, owner: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef):
                found.append((child, owner))
                walk(child, owner)
            else:
                walk(child, child.name if isinstance(child, ast.ClassDef) else owner)

    try:
        walk(without_match(ast.parse(text)), "")
    except SyntaxError as error:
        raise RewriteError(f"the source does not parse: {error}") from error
    return found


def compiled(function: ast.FunctionDef, owner: str, code: CodeType) -> CodeType:
    """Code for a rewritten function that can stand in place of `code`: same arguments, same variables from outside."""
    bare = _bare(function, owner)
    outside = list(code.co_freevars)
    setting: list[ast.stmt] = []
    if outside:
        setting.append(ast.Assign([ast.Name(n, ast.Store()) for n in outside], ast.Constant(None)))
    if bare.name not in outside:  # in its own body the name of a function is a global one, as where it was written
        setting.append(ast.Global([bare.name]))
    frame = ast.FunctionDef(
        name="frame",
        args=ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[]),
        body=[*setting, bare],
        decorator_list=[],
    )
    module = ast.fix_missing_locations(ast.Module([ast.copy_location(frame, function)], []))
    outer = next(c for c in compile(module, code.co_filename, "exec").co_consts if isinstance(c, CodeType))
    new = next(c for c in outer.co_consts if isinstance(c, CodeType) and c.co_name == code.co_name)
    if new.co_freevars != code.co_freevars:
        raise RewriteError(f"{code.co_qualname} takes other variables from outside once rewritten")
    return new.replace(co_qualname=code.co_qualname)


def _bare(function: ast.FunctionDef, owner: str) -> ast.FunctionDef:
    """Without what belongs to the function object and not to its code; names as a class would have them."""
    bare: ast.FunctionDef = _AsInClass(owner, function).visit(function)
    bare.decorator_list = []
    bare.returns = None
    arguments = bare.args
    arguments.defaults = [ast.Constant(None) for _ in arguments.defaults]
    arguments.kw_defaults = [d and ast.Constant(None) for d in arguments.kw_defaults]
    for node in ast.walk(arguments):
        if isinstance(node, ast.arg):
            node.annotation = None
    return bare


class _AsInClass(ast.NodeTransformer):
    """Private names mangled, and `super()` spelled out: inside an inner function it would not find its object."""

    def __init__(self, owner: str, function: ast.FunctionDef) -> None:
        self._owner = owner.lstrip("_")
        first = [*function.args.posonlyargs, *function.args.args]
        self._self = first[0].arg if first else None

    def _mangled(self, name: str) -> str:
        private = name.startswith("__") and not name.endswith("__") and self._owner
        return f"_{self._owner}{name}" if private else name

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.copy_location(ast.Name(self._mangled(node.id), node.ctx), node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        node.attr = self._mangled(node.attr)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args and self._self:
            node.args = [ast.Name("__class__", ast.Load()), ast.Name(self._self, ast.Load())]
        return node


# The user's plain objects that a function can reach: what it finds around it, and what is handed to it.

_OWN = __name__.rpartition(".")[0]
_NOT_THE_USERS = {"torch", "torchport", "builtins", *sys.stdlib_module_names}


def parts_of(value: Any) -> list[Any]:
    """What a container holds, or a function finds around it. Nothing is made anew: ids stay those of living objects."""
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, FunctionType):
        found = []
        for cell in value.__closure__ or ():
            with contextlib.suppress(ValueError):  # a variable that has no value yet
                found.append(cell.cell_contents)
        return found
    if isinstance(value, (list, tuple)):
        return list(value)
    return list(value.values()) if isinstance(value, dict) else []


def plain_objects(*values: Any) -> list[Any]:
    """Instances of the user's classes, but for tensors and modules."""
    seen: dict[int, Any] = {}
    found: list[Any] = []

    def look(value: Any) -> None:
        if isinstance(value, (torch.Tensor, OpenList, str, type, ModuleType)) or id(value) in seen:
            return
        seen[id(value)] = value
        parts = parts_of(value)
        for part in parts:
            look(part)
        if isinstance(value, MethodType):
            look(value.__self__)
        elif isinstance(value, torch.nn.Module):
            for name, item in vars(value).items():
                if not name.startswith("_"):
                    look(item)
        elif not parts and _is_users(type(value)) and hasattr(value, "__dict__"):
            found.append(value)
            look(vars(value))
        elif type(value).__module__.startswith(_OWN):
            look(vars(value))

    for value in values:
        look(value)
    return found


def _is_users(kind: type) -> bool:
    return kind is SimpleNamespace or kind.__module__.partition(".")[0] not in _NOT_THE_USERS
