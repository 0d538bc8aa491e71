"""Turn the control flow of a function into calls of `flow`, at the lines a capture stumbled over.

`if` and loops become functions of the variables they change. A branch that returns takes the statements after the `if`
with it, so that every way through ends in a `return`; `break` and `continue` end a round. All nodes keep their lines.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from torchport.capture.control_flow import analysis
from torchport.capture.control_flow.analysis import Function, choose, is_chosen, sites
from torchport.capture.control_flow.expressions import FLOW, Expressions, assign, flow_call, load, thunk
from torchport.errors import RewriteError

Loop = ast.While | ast.For


class RewriteLineError(RewriteError):
    """A refusal found in the source, with its line."""

    def __init__(self, text: str, line: int) -> None:
        super().__init__(text)
        self.line = line


def rewrite(
    function: Function,
    lines: set[int],
    splits: frozenset[int] = frozenset(),
    sides: Mapping[int, bool] = MappingProxyType({}),
) -> Function:
    """The function with its control flow at `lines` rewritten; `function` itself stays as it is.

    Args:
        function: as it was written.
        lines: what to rewrite.
        splits: lines of an `if` whose two sides cannot be brought together: all that follows goes into both.
        sides: lines of an `if` of which one side is always taken, and whether that is the first.
    """
    function = copy.deepcopy(function)
    chosen = sites(function, lines)
    for node in ast.walk(function):
        if id(node) in chosen:
            choose(node)
            if isinstance(node, (ast.If, ast.IfExp)) and node.lineno in sides:
                node.test = ast.copy_location(ast.Constant(sides[node.lineno]), node.test)
    return _Rewriter(_with_statements(function, splits), splits).run()


def _with_statements(function: Function, splits: frozenset[int]) -> Function:
    """``y = a if test else b`` as an `if` statement, where it is to be split."""

    class Statements(ast.NodeTransformer):
        def visit_Assign(self, node: ast.Assign) -> ast.stmt:
            if not isinstance(node.value, ast.IfExp) or node.value.lineno not in splits:
                return node
            sides = [ast.copy_location(ast.Assign(copy.deepcopy(node.targets), v), node) for v in _sides(node.value)]
            statement = ast.copy_location(ast.If(node.value.test, [sides[0]], [sides[1]]), node)
            choose(statement)
            return statement

    rewritten: Function = Statements().visit(function) if splits else function
    return rewritten


def _sides(expression: ast.IfExp) -> list[ast.expr]:
    return [expression.body, expression.orelse]


class _Rewriter:
    def __init__(self, function: Function, splits: frozenset[int]) -> None:
        self._function = function
        self._splits = splits
        self._names = {n.id for n in ast.walk(function) if isinstance(n, ast.Name)}
        self._names |= {a.arg for a in ast.walk(function) if isinstance(a, ast.arg)}
        for node in analysis.own_nodes(function.body):
            if isinstance(node, (ast.Global, ast.Nonlocal, ast.Yield, ast.YieldFrom, ast.Await)):
                raise RewriteLineError(
                    f"a function with `{type(node).__name__.lower()}` cannot be rewritten", node.lineno
                )

    def run(self) -> Function:
        function = self._function
        arguments = function.args
        given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        given += [a for a in (arguments.vararg, arguments.kwarg) if a is not None]
        self._bound = {a.arg for a in given}
        self._seen = set(self._bound)
        body = list(function.body)
        if any(self._leaves(s) for s in body) and not analysis.always_leaves(body):
            body.append(ast.copy_location(ast.Return(ast.Constant(None)), body[-1]))
        function.body = self._block(body, set(), tail=True)
        return ast.fix_missing_locations(function)

    def _touched(self, node: ast.AST) -> bool:
        return any(is_chosen(n) for n in ast.walk(node))

    def _leaves(self, statement: ast.stmt) -> bool:
        """Whether something in a statement that becomes a function jumps out of it."""
        for node in analysis.own_nodes([statement]):
            if isinstance(node, ast.If) and is_chosen(node) and self._splits_or_jumps(node):
                return True
            if isinstance(node, (ast.While, ast.For)) and analysis.has_jump(node) and self._converts(node):
                return True
        return False

    def _splits_or_jumps(self, statement: ast.If) -> bool:
        return statement.lineno in self._splits or analysis.has_jump(statement)

    def _block(self, block: Sequence[ast.stmt], after: set[str], *, tail: bool) -> list[ast.stmt]:
        """Rewrite a block.

        Args:
            block: its statements; in a tail every way through them ends in a return, or leaves the function.
            after: the variables that matter at its end.
            tail: whether nothing comes after it.
        """
        done: list[ast.stmt] = []
        for number, statement in enumerate(block):
            rest = list(block[number + 1 :])
            live = analysis.before(rest, after)
            if not self._touched(statement):
                done.append(statement)
                self._note(statement)
                if isinstance(statement, (ast.Return, ast.Raise, ast.Break, ast.Continue)):
                    break
            elif isinstance(statement, ast.If):
                statements = self._raises(statement)
                if statements is not None:
                    return done + self._checked(statements, rest, after, tail)
                if self._leaves(statement):
                    self._need_tail(statement, tail)
                    return done + self._leaving_if(statement, rest)
                done += self._if(statement, live)
            elif isinstance(statement, (ast.While, ast.For)):
                if self._converts(statement):
                    loop, returned = self._loop(statement, live)
                    done += loop
                    if returned is not None:
                        self._need_tail(statement, tail)
                        return done + self._block([returned, *rest], after, tail=True)
                else:
                    head = analysis.loop_head(statement, live)
                    statement = self._expressions_of(statement)
                    statement.body = self._block(statement.body, head, tail=False)
                    done.append(statement)
            else:
                done.append(self._other(statement, live))
                self._note(statement)
                if isinstance(statement, (ast.Return, ast.Raise)):
                    break
        return done

    def _note(self, statement: ast.stmt) -> None:
        names = set(analysis.stored([statement]))
        self._seen |= names
        if not isinstance(statement, (ast.If, ast.While, ast.For, ast.Try)):
            self._bound |= names

    def _need_tail(self, statement: ast.stmt, tail: bool) -> None:
        if not tail:
            raise RewriteLineError(
                "a jump out of `with`, `try` or a loop around it cannot be rewritten", statement.lineno
            )

    # --- if

    def _raises(self, statement: ast.If) -> list[ast.stmt] | None:
        """An `if` one side of which raises: a graph has no exceptions, so the other side it is."""
        if not is_chosen(statement):
            return None
        test: ast.expr
        if statement.body and isinstance(statement.body[-1], ast.Raise):
            test, raising, other = statement.test, statement.body, statement.orelse
        elif statement.orelse and isinstance(statement.orelse[-1], ast.Raise):
            test = ast.copy_location(ast.UnaryOp(ast.Not(), statement.test), statement.test)
            raising, other = statement.orelse, statement.body
            choose(test)
        else:
            return None
        never = self._call("never", [self._expression(test)], statement)
        check = ast.copy_location(ast.If(never, raising, []), statement)
        return [check, *other]

    def _checked(self, statements: list[ast.stmt], rest: list[ast.stmt], after: set[str], tail: bool) -> list[ast.stmt]:
        check, *other = statements
        return [check, *self._block([*other, *([] if analysis.always_leaves(other) else rest)], after, tail=tail)]

    def _if(self, statement: ast.If, live: set[str]) -> list[ast.stmt]:
        """An `if` that is left at its end only."""
        test = self._expression(statement.test)
        if not is_chosen(statement):
            statement.test = test
            bound = set(self._bound)
            statement.body = self._block(statement.body, live, tail=False)
            then_bound, self._bound = self._bound, bound
            statement.orelse = self._block(statement.orelse, live, tail=False)
            self._bound &= then_bound
            return [statement]
        state = self._state([*statement.body, *statement.orelse], live, statement.body, statement.orelse)
        functions = [
            self._inner(f"{word}_{statement.lineno}", state, block, live, statement)
            for word, block in (("then", statement.body), ("otherwise", statement.orelse))
        ]
        call = self._call("cond", [test, *(load(f.name) for f in functions), *map(load, state)], statement)
        return [*self._unset(state, statement), *functions, self._assigned(state, call, statement)]

    def _leaving_if(self, statement: ast.If, rest: list[ast.stmt]) -> list[ast.stmt]:
        """An `if` with a return in it: what follows goes into both sides, and it becomes the last statement."""
        test = self._expression(statement.test)
        body = statement.body if analysis.always_leaves(statement.body) else [*statement.body, *copy.deepcopy(rest)]
        orelse = statement.orelse if analysis.always_leaves(statement.orelse) else [*statement.orelse, *rest]
        if not is_chosen(statement):
            statement.test = test
            bound, seen = set(self._bound), set(self._seen)
            statement.body = self._block(body, set(), tail=True)
            self._bound, self._seen = bound, seen
            statement.orelse = self._block(orelse, set(), tail=True)
            return [statement]
        state = self._state([*body, *orelse], set(), body, orelse)
        functions = [
            self._inner(f"{word}_{statement.lineno}", state, block, None, statement)
            for word, block in (("then", body), ("otherwise", orelse))
        ]
        call = self._call("cond", [test, *(load(f.name) for f in functions), *map(load, state)], statement)
        return [*self._unset(state, statement), *functions, ast.copy_location(ast.Return(call), statement)]

    # --- loops

    def _converts(self, statement: Loop) -> bool:
        """Whether a loop must become a function: it was asked for, or something in it was that jumps."""
        if is_chosen(statement):
            return True
        return any(
            isinstance(node, ast.If) and is_chosen(node) and analysis.has_jump(node)
            for node in analysis.own_nodes(statement.body)
        )

    def _loop(self, statement: Loop, live: set[str]) -> tuple[list[ast.stmt], ast.If | None]:
        """A loop as a call; and an `if` to put after it when the loop returns from the function."""
        if statement.orelse:
            raise RewriteLineError("a loop with `else` cannot be rewritten", statement.lineno)
        line = statement.lineno
        returns = any(isinstance(n, ast.Return) for n in analysis.own_nodes(statement.body))
        returned, answer = self._fresh(f"returned_{line}"), self._fresh(f"answer_{line}")
        before: list[ast.stmt] = []
        if returns:
            live = live | {returned, answer}
        head = analysis.loop_head(statement, live)
        target = set(analysis.stored([statement.target])) if isinstance(statement, ast.For) else set()
        state = [n for n in analysis.stored(statement.body) if n in head and n not in target]
        state += [n for n in target if n in live]
        if returns:
            state += [returned, answer]
            before = [assign(returned, ast.Constant(False), statement)]
            self._bound.add(returned)
        body = self._round_body(statement, state, (returned, answer))
        iterated = self._expression(statement.iter) if isinstance(statement, ast.For) else None
        unset = self._unset(state, statement)
        arguments = list(state)
        if isinstance(statement, ast.For):
            simple = isinstance(statement.target, ast.Name) and statement.target.id not in state
            item = statement.target.id if simple else self._fresh(f"item_{line}")  # type: ignore[attr-defined]
            if not simple:
                body.insert(0, ast.copy_location(ast.Assign([statement.target], load(item)), statement))
            arguments = [item, *state]
        step = self._inner(f"round_{line}", arguments, body, None, statement)
        if iterated is not None:
            call = self._call("for_loop", [iterated, load(step.name), *map(load, state)], statement)
            functions = [step]
        else:
            assert isinstance(statement, ast.While)
            question = ast.copy_location(ast.Return(self._expression(statement.test)), statement)
            test = self._define(self._fresh(f"test_{line}"), state, [question], statement)
            functions = [test, step]
            call = self._call("while_loop", [load(test.name), load(step.name), *map(load, state)], statement)
        done = [*before, *unset, *functions, self._assigned(state, call, statement)]
        if not returns:
            return done, None
        leave = ast.If(load(returned), [ast.Return(load(answer))], [])
        ast.copy_location(leave, statement)
        ast.fix_missing_locations(leave)
        choose(leave)
        return done, leave

    def _round_body(self, statement: Loop, state: list[str], names: tuple[str, str]) -> list[ast.stmt]:
        """The body of a loop as the body of a function: jumps become returns of whether to stop, and the state."""
        jumps = _Jumps(state, names)
        body = [new for s in statement.body for new in jumps.statement(s)]
        return body if analysis.always_leaves(body) else [*body, jumps.leave(False, statement)]

    # --- pieces

    def _state(self, changed: list[ast.stmt], live: set[str], *blocks: list[ast.stmt]) -> list[str]:
        """The variables a piece changes and that matter after it, or are read in it before they are set."""
        wanted = set(live)
        for block in blocks:
            wanted |= analysis.before(block, set(live))
        return [n for n in analysis.stored(changed) if n in wanted]

    def _unset(self, state: list[str], at: ast.stmt) -> list[ast.stmt]:
        """Give variables that may have no value yet one that says so."""
        new: list[ast.stmt] = []
        for name in state:
            if name in self._bound:
                continue
            if name in self._seen:
                empty = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
                value: ast.expr = self._call("bound", [ast.Lambda(empty, load(name))], at)
            else:
                value = ast.Attribute(load(FLOW), "UNSET", ast.Load())
            new.append(assign(name, value, at))
            self._bound.add(name)
        return new

    def _inner(
        self, name: str, state: list[str], block: list[ast.stmt], live: set[str] | None, at: ast.stmt
    ) -> ast.FunctionDef:
        """A branch or a round as a function. With `live`, it is left at its end only and gives the state back."""
        bound, seen = self._bound, self._seen
        own = set(analysis.stored(block))  # variables of the new function: what they were outside does not count
        self._bound, self._seen = (bound - own) | set(state), (seen - own) | set(state)
        if live is None:
            body = self._block(block, set(), tail=True)
            if not analysis.always_leaves(body):
                body.append(ast.copy_location(ast.Return(ast.Constant(None)), at))
        else:
            body = self._block(block, live | set(state), tail=False)
            body.append(ast.copy_location(ast.Return(ast.Tuple([load(n) for n in state], ast.Load())), at))
        self._bound, self._seen = bound, seen
        return self._define(self._fresh(name), state, body, at)

    def _define(self, name: str, parameters: list[str], body: list[ast.stmt], at: ast.stmt) -> ast.FunctionDef:
        arguments = ast.arguments(
            posonlyargs=[], args=[ast.arg(p) for p in parameters], kwonlyargs=[], kw_defaults=[], defaults=[]
        )
        function = ast.FunctionDef(name=name, args=arguments, body=body, decorator_list=[])
        if hasattr(function, "type_params") or "type_params" in ast.FunctionDef._fields:
            function.type_params = []  # type: ignore[attr-defined]
        return ast.fix_missing_locations(ast.copy_location(function, at))

    def _fresh(self, name: str) -> str:
        new, number = name, 2
        while new in self._names:
            new, number = f"{name}_{number}", number + 1
        self._names.add(new)
        return new

    def _assigned(self, state: list[str], call: ast.expr, at: ast.stmt) -> ast.stmt:
        self._bound |= set(state)
        if not state:
            return ast.copy_location(ast.Expr(call), at)
        targets = ast.Tuple([ast.Name(n, ast.Store()) for n in state], ast.Store())
        return ast.fix_missing_locations(ast.copy_location(ast.Assign([targets], call), at))

    def _other(self, statement: ast.stmt, live: set[str]) -> ast.stmt:
        """Statements that only hold others, and plain ones with expressions to rewrite."""
        if isinstance(statement, ast.With):
            statement.items = [self._expressions_in(i) for i in statement.items]
            statement.body = self._block(statement.body, live, tail=analysis.always_leaves(statement.body))
            return statement
        if isinstance(statement, ast.Try):
            raise RewriteLineError("control flow on tensors inside `try` cannot be rewritten", statement.lineno)
        if isinstance(statement, ast.Match):
            raise RewriteLineError(
                "control flow on tensors inside a `match` that takes values apart cannot be rewritten", statement.lineno
            )
        if isinstance(statement, ast.FunctionDef):
            inner = _Rewriter(statement, self._splits)
            inner._names = self._names
            return inner.run()
        if isinstance(statement, ast.Assert):
            test = self._expression(statement.test)
            if is_chosen(statement):
                test = self._call("holds", [thunk(test)], statement)
            statement.test = test
            return statement
        return self._expressions_in(statement)

    def _expressions_of(self, statement: Loop) -> Loop:
        if isinstance(statement, ast.For):
            statement.iter = self._expression(statement.iter)
        else:
            statement.test = self._expression(statement.test)
        return statement

    def _expression(self, node: ast.expr) -> ast.expr:
        rewritten: ast.expr = self._expressions_in(node)
        return rewritten

    def _expressions_in(self, node: Any) -> Any:
        return Expressions().visit(node)

    def _call(self, name: str, arguments: list[ast.expr], at: ast.AST) -> ast.expr:
        return flow_call(name, arguments, at)


class _Jumps:
    """Break, continue and return inside a loop that becomes a function."""

    def __init__(self, state: list[str], names: tuple[str, str]) -> None:
        self._state = state
        self._returned, self._answer = names

    def leave(self, stop: bool, at: ast.stmt) -> ast.stmt:
        values: list[ast.expr] = [ast.Constant(stop), *map(load, self._state)]
        return ast.fix_missing_locations(ast.copy_location(ast.Return(ast.Tuple(values, ast.Load())), at))

    def statement(self, s: ast.stmt, *, own: bool = True) -> list[ast.stmt]:
        if isinstance(s, ast.Return):
            value = s.value or ast.Constant(None)
            return [
                assign(self._answer, value, s),
                assign(self._returned, ast.Constant(True), s),
                self.leave(True, s),
            ]
        if own and isinstance(s, ast.Break):
            return [self.leave(True, s)]
        if own and isinstance(s, ast.Continue):
            return [self.leave(False, s)]
        if isinstance(s, (ast.FunctionDef, ast.ClassDef)):
            return [s]
        own = own and not isinstance(s, (ast.While, ast.For))
        for field in ("body", "orelse", "finalbody"):
            block = getattr(s, field, None)
            if isinstance(block, list):
                setattr(s, field, [new for inner in block for new in self.statement(inner, own=own)])
        for handler in getattr(s, "handlers", []):
            handler.body = [new for inner in handler.body for new in self.statement(inner, own=own)]
        return [s]
