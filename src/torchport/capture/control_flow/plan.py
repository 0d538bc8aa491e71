"""Which lines of which functions to rewrite, and the new code in place for the time of a capture."""

from __future__ import annotations

import ast
import contextlib
import gc
import inspect
from collections.abc import Iterator, Sequence
from types import CodeType, FunctionType
from typing import Any

import torch

from torchport.capture.control_flow import flow
from torchport.capture.control_flow.analysis import alike, assertions, loads, sites, stored
from torchport.capture.control_flow.expressions import FLOW
from torchport.capture.control_flow.source import compiled, function_of
from torchport.capture.control_flow.transform import rewrite
from torchport.capture.origins import Site, is_user_file, place
from torchport.errors import RewriteError
from torchport.results import Finding


class Rewritten:
    """One function with the lines to rewrite."""

    def __init__(self, code: CodeType) -> None:
        self.code = code
        self.source, self.owner = function_of(code)
        self.lines: set[int] = set()
        self.asserted: set[int] = set()
        self.splits: frozenset[int] = frozenset()
        self.sides: dict[int, bool] = {}
        self.new = code
        self._made: list[CodeType] = []

    def add(self, further: set[int]) -> bool:
        """Rewrite more lines; whether that changes anything."""
        lines = self.lines | further
        if sites(self.source, lines) == sites(self.source, self.lines):
            return False
        self._compile(lines)
        return True

    def keep(self, lines: set[int]) -> None:
        """Rewrite these lines only."""
        if lines != self.lines:
            self._compile(lines)

    def split(self, line: int) -> bool:
        """Let all that follows an `if` go into both of its sides; whether that is news."""
        if line in self.splits:
            return False
        self.splits |= {line}
        self._compile(self.lines)
        return True

    def take_side(self, line: int, first: bool) -> bool:
        """Always take one side of an `if`; whether that is news."""
        if line in self.sides:
            return False
        self.sides[line] = first
        self._compile(self.lines)
        return True

    def _compile(self, lines: set[int]) -> None:
        new = rewrite(self.source, lines, self.splits, self.sides)
        self.new = compiled(new, self.owner, self.code) if lines else self.code
        self._made.append(self.new)
        self.lines = lines

    def made(self, code: CodeType) -> bool:
        """Whether a piece of code that ran is this function's, in any of its forms."""
        return any(own is code or _holds(own, code) for own in (self.code, *self._made))

    def text(self) -> str:
        """The rewritten source, to read or to keep."""
        return ast.unparse(rewrite(self.source, self.lines, self.splits, self.sides)).replace(FLOW, "flow")


class Plan:
    """The functions to rewrite."""

    def __init__(self) -> None:
        self.functions: list[Rewritten] = []

    def add(self, site: Site) -> Rewritten | None:
        """Rewrite what stands at a line; None if there is nothing that could be."""
        return self.add_lines(self._root(site.codes), {site.line})

    def add_alike(self, site: Site) -> Rewritten | None:
        """The same for the line and all in its function that ask what it asks: each would cost another capture."""
        code = self._root(site.codes)
        try:
            source = function_of(code)[0]
            added = self.add_lines(code, alike(source, site.line))
            if added is not None:
                added.asserted |= assertions(source) & {site.line}
            return added
        except RewriteError:
            return self.add(site)  # what cannot be rewritten may be another line

    def add_lines(self, code: CodeType, lines: set[int]) -> Rewritten | None:
        """Rewrite what stands at these lines of a function; None if there is nothing that could be."""
        function = next((f for f in self.functions if f.code is code), None) or Rewritten(code)
        if not function.add(lines):
            return None
        if function not in self.functions:
            self.functions.append(function)
        return function

    def add_assertions(self, site: Site) -> None:
        """Rewrite the assertions of the class that a method belongs to. The graph has none, and what they ask of sizes
        that only values tell would stop one capture after the other."""
        for function in _methods_beside(self._root(site.codes)):
            with contextlib.suppress(RewriteError):  # it is left as it is
                lines = assertions(function_of(function.__code__)[0])
                if lines:
                    self.add_lines(function.__code__, lines)

    def left_out(self) -> tuple[Finding, ...]:
        """The assertions on values that stopped the capture, and are not in the graph."""
        what = "the assertion is not in the ONNX model, which gives numbers where PyTorch raises"
        places = [(f.code.co_filename, line) for f in self.functions for line in sorted(f.asserted & f.lines)]
        return tuple(Finding(what, place(*at)) for at in places)

    def lines(self) -> dict[Rewritten, set[int]]:
        """What is rewritten by now."""
        return {f: f.lines for f in self.functions}

    def restore(self, lines: dict[Rewritten, set[int]]) -> None:
        """Rewrite no more than was at an earlier time."""
        for function in self.functions:
            function.keep(lines.get(function, set()))
        self.functions = list(lines)

    def split(self, site: Site) -> bool:
        """Let what follows the `if` at a place go into both of its sides; whether that changes anything."""
        code = self._root(site.codes)
        return any(f.code is code and f.split(site.line) for f in self.functions)

    def take_side(self, site: Site, first: bool) -> bool:
        """Always take one side of the `if` at a place; whether that changes anything."""
        code = self._root(site.codes)
        return any(f.code is code and f.take_side(site.line, first) for f in self.functions)

    def one_sided(self) -> tuple[Finding, ...]:
        """The places at which one side is always taken."""
        what = "the branch that returns None instead of a tensor is never taken"
        return tuple(Finding(what, place(f.code.co_filename, line)) for f in self.functions for line in f.sides)

    def _root(self, codes: Sequence[CodeType]) -> CodeType:
        """The function to rewrite for a place: of nested functions the outermost that ran, as it was written."""
        code = codes[0]
        for outer in codes[1:]:
            if _holds(outer, code):
                code = outer
        return next((f.code for f in self.functions if f.made(code)), code)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """The new code in the user's functions, and `flow` where it finds it; all is put back."""
        changed: list[tuple[FunctionType, CodeType]] = []
        modules: list[dict[str, object]] = []
        try:
            for function in self.functions:
                users = [f for f in gc.get_referrers(function.code) if isinstance(f, FunctionType)]
                for user in users:
                    if user.__code__ is function.code:
                        changed.append((user, function.code))
                        user.__code__ = function.new
                        user.__globals__[FLOW] = flow
                        modules.append(user.__globals__)
                if not any(f.__code__ is function.new for f in users):
                    raise RewriteError(f"{function.code.co_qualname} is made anew at each call; define it outside")
            yield
        finally:
            for user, code in changed:
                user.__code__ = code
            for module in modules:
                module.pop(FLOW, None)


def _methods_beside(code: CodeType) -> list[FunctionType]:
    """The functions of the class that a method was defined in."""
    users = [f for f in gc.get_referrers(code) if isinstance(f, FunctionType) and f.__code__ is code]
    owners = {f.__globals__.get(code.co_qualname.partition(".")[0]) for f in users}
    members = [m for owner in owners if isinstance(owner, type) for m in vars(owner).values()]
    functions = [getattr(m, "__func__", m) for m in members]
    return [f for f in functions if isinstance(f, FunctionType)]


def _holds(outer: CodeType, inner: CodeType) -> bool:
    """Whether a function defines another inside. The methods of a class it defines are their own functions."""
    inside = [c for c in outer.co_consts if isinstance(c, CodeType) and _is_function(c)] if _is_function(outer) else []
    return any(c is inner or _holds(c, inner) for c in inside)


def _is_function(code: CodeType) -> bool:
    """Not a module or the body of a class."""
    return bool(code.co_flags & inspect.CO_OPTIMIZED)


# Find control flow that may depend on tensors by reading the source, for a model without example inputs.


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
