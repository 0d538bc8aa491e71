"""Find control flow that may depend on tensors by reading the source, for a model without example inputs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import torch

from torchport.capture.blame import is_user_file
from torchport.capture.rewrite.liveness import loads, stored
from torchport.capture.rewrite.plan import Plan
from torchport.capture.rewrite.refusal import RewriteError
from torchport.capture.rewrite.source import function_of


def plan_by_reading(model: Any) -> tuple[Plan, list[str]]:
    """Everything that may have to be rewritten; and what could not be, in words."""
    plan, refused = Plan(), []
    for function in _functions(model):
        try:
            plan.add_lines(function.__code__, _lines(*function_of(function.__code__)))
        except RewriteError as error:
            refused.append(f"{function.__qualname__}: {error}")
    return plan, refused


def _functions(model: Any) -> Iterator[FunctionType]:
    """The user's functions a model may run: what forward calls, in the model and its parts."""
    modules = list(model.modules()) if isinstance(model, torch.nn.Module) else []
    waiting: list[tuple[Any, Any]] = [(type(m).forward, m) for m in modules] or [(model, None)]
    seen: set[int] = set()
    while waiting:
        function, owner = waiting.pop(0)
        function = getattr(function, "__func__", function)
        if not isinstance(function, FunctionType) or id(function.__code__) in seen:
            continue
        seen.add(id(function.__code__))
        if not is_user_file(function.__code__.co_filename):
            continue
        yield function
        for name in function.__code__.co_names:
            waiting.append((function.__globals__.get(name), None))
            if owner is not None:
                waiting.append((getattr(type(owner), name, None), owner))


def _lines(function: ast.FunctionDef, owner: str) -> set[int]:
    """Lines with a condition or a loop over something that comes from the arguments."""
    names = _from_arguments(function, owner)
    lines: set[int] = set()
    for node in ast.walk(function):
        if isinstance(node, (ast.If, ast.While, ast.IfExp, ast.Assert)) and _may_be_tensor(node.test, names):
            lines.add(node.test.lineno)
        elif isinstance(node, ast.For) and loads(node.iter) & names:
            lines.add(node.iter.lineno)
    return lines


def _from_arguments(function: ast.FunctionDef, owner: str) -> set[str]:
    """Arguments that may be tensors, and variables computed from them."""
    arguments = function.args
    given = [*arguments.posonlyargs, *arguments.args][1 if owner else 0 :]  # a method's first is its object
    names = {a.arg for a in [*given, *arguments.kwonlyargs]}
    for _ in range(3):
        for node in ast.walk(function):
            if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For)):
                value = node.iter if isinstance(node, ast.For) else node.value
                if value is not None and loads(value) & names:
                    names |= set(stored([node]))
    return names


def _may_be_tensor(test: ast.expr, names: set[str]) -> bool:
    """Not `is None`, `isinstance` and the like, which ask about Python."""
    if isinstance(test, ast.BoolOp):
        return any(_may_be_tensor(v, names) for v in test.values)
    if isinstance(test, ast.UnaryOp):
        return _may_be_tensor(test.operand, names)
    if isinstance(test, ast.Compare) and any(isinstance(op, (ast.Is, ast.IsNot, ast.In, ast.NotIn)) for op in test.ops):
        return False
    if isinstance(test, ast.Name):
        return False  # a flag; if it is a tensor, the capture will say so
    if isinstance(test, ast.Call) and ast.unparse(test.func) in ("isinstance", "hasattr", "callable"):
        return False
    return bool(loads(test) & names)
