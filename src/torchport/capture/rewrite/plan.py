"""Which lines of which functions to rewrite, and the new code in place for the time of a capture."""

from __future__ import annotations

import ast
import contextlib
import gc
import inspect
from collections.abc import Iterator, Sequence
from types import CodeType, FunctionType

from torchport.capture.places import Site
from torchport.capture.rewrite import flow
from torchport.capture.rewrite.expressions import FLOW
from torchport.capture.rewrite.refusal import RewriteError
from torchport.capture.rewrite.sites import alike, assertions, sites
from torchport.capture.rewrite.source import compiled, function_of
from torchport.capture.rewrite.transform import rewrite


class Rewritten:
    """One function with the lines to rewrite."""

    def __init__(self, code: CodeType) -> None:
        self.code = code
        self.source, self.owner = function_of(code)
        self.lines: set[int] = set()
        self.splits: frozenset[int] = frozenset()
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

    def _compile(self, lines: set[int]) -> None:
        new = rewrite(self.source, lines, self.splits)
        self.new = compiled(new, self.owner, self.code) if lines else self.code
        self._made.append(self.new)
        self.lines = lines

    def made(self, code: CodeType) -> bool:
        """Whether a piece of code that ran is this function's, in any of its forms."""
        return any(own is code or _holds(own, code) for own in (self.code, *self._made))

    def text(self) -> str:
        """The rewritten source, to read or to keep."""
        return ast.unparse(rewrite(self.source, self.lines, self.splits)).replace(FLOW, "flow")


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
            return self.add_lines(code, alike(function_of(code)[0], site.line))
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
