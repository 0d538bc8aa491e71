"""Symbolic sizes: what torch knows of them, and the conditions on them that it decides."""

from __future__ import annotations

import contextlib
import logging
import math
import operator
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

import sympy  # torch brings it along
import torch

from torchport.torch_compat.error_texts import says
from torchport.torch_compat.parts import has, part, patched
from torchport.torch_compat.sampled_sizes import has_quotient
from torchport.torch_compat.tracing import fake_mode


def check(condition: Any) -> None:
    """Tell torch that a condition on sizes holds: the program asserts it when it runs."""
    part("_check")(condition)


def fresh_size() -> torch.SymInt:
    """Return a size of which torch knows only that it is one."""
    size: torch.SymInt = fake_mode().shape_env.create_unbacked_symint()
    check(size >= 0)
    return size


def _shape_env() -> Any:
    """Return what the capture knows of sizes; None without a capture, or where sizes are numbers."""
    mode = part("detect_fake_mode")() if has("detect_fake_mode", "ShapeEnv") else None
    return mode.shape_env if mode is not None else None


def without_fresh_sizes() -> contextlib.AbstractContextManager[Any]:
    """Let code read values of tensors, for a while: torch does not expect these numbers in what an operator gives."""
    env = _shape_env()
    found: contextlib.AbstractContextManager[Any] = (
        contextlib.nullcontext() if env is None else env.ignore_fresh_unbacked_symbols()
    )
    return found


def has_fresh_sizes(outputs: Iterable[Any], inputs: Iterable[Any]) -> bool:
    """Check that outputs have sizes that come from values, and that no input has."""
    env = _shape_env()
    fresh = _symbols(outputs) - _symbols(inputs)
    return env is not None and any(env.is_unbacked_symint(symbol) for symbol in fresh)


def is_from_values(size: Any) -> bool:
    """Check that a size is one that only the running model knows."""
    env = _shape_env()
    symbols = size.node.expr.free_symbols if isinstance(size, torch.SymInt) else ()
    return env is not None and any(map(env.is_unbacked_symint, symbols))


def _symbols(values: Iterable[Any]) -> set[Any]:
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    sizes: list[Any] = [s for t in tensors for s in t.shape if isinstance(s, torch.SymInt)]
    return {symbol for s in sizes for symbol in s.node.expr.free_symbols}


def statically_known_true(condition: Any) -> bool:
    """Check that a condition holds for every size that torch allows; no guard is added."""
    return bool(part("statically_known_true")(condition))


def rounds(span: Any, step: Any) -> Any:
    """Return how often a step goes into a span, rounded up: a number where it is the same for every size.

    `range(0, n, n)` has one item, of which the formula alone does not tell torch.
    """
    if isinstance(step, int) and step == 1:
        return span if isinstance(span, int) else _as_number(span.node.expr, span)
    ratio = _expression(span) / _expression(step)
    return _as_number(ratio, (span + step - 1) // step)


def _expression(size: Any) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)


def _as_number(found: Any, otherwise: Any) -> Any:
    return int(sympy.ceiling(found)) if found.is_Rational else otherwise


def guard_or_false(condition: Any) -> bool:
    """Check that a condition holds; False if only the running model knows."""
    return bool(part("guard_or_false")(condition))


def guard_int(size: Any) -> int:
    """Return a size's number in the example, which the capture is fixed to."""
    return int(part("guard_int")(size))


# Conditions that a size of one answers otherwise than larger ones.
#
# torch.export takes it that a size which varies is never 1. A condition such as ``n == 1`` or ``n - 1 > 0`` is settled
# by that, and no guard is noted. Here it is noticed, for conditions that the user's own code asks.

_SMALLEST = 2  # torch's lower bound for a size that varies


def other_at_one(asked: torch.SymBool) -> bool:
    """Check that torch takes a condition on sizes for settled, and that the answer differs where a size is 1."""
    env = getattr(asked.node, "shape_env", None)
    if env is None:  # a constant
        return False
    part("ShapeEnv")  # no public function says what a condition comes to at sizes that torch excludes
    condition = asked.node.expr
    sizes = [s for s in condition.free_symbols if s in env.backed_var_to_val and env.var_to_range[s].lower == _SMALLEST]
    if not sizes:
        return False
    settled = env._maybe_evaluate_static(condition)
    if settled is None:
        return False
    ones = {s: sympy.Integer(1) for s in sizes}
    small = [_where(condition, some) for some in (*({s: n} for s, n in ones.items()), ones)]
    answers = [env._maybe_evaluate_static(c) if c is not None and c.free_symbols else c for c in small]
    return any(answer is not None and answer != settled for answer in answers)


def _where(condition: Any, sizes: dict[Any, Any]) -> Any:
    """A condition at some sizes; None where it divides by zero: the model has no answer there."""
    try:
        return condition.xreplace(sizes)
    except ZeroDivisionError:
        return None


def surely(condition: Any) -> bool:
    """Check that a condition on sizes holds whatever they are, one included."""
    return statically_known_true(condition) and not (isinstance(condition, torch.SymBool) and other_at_one(condition))


@contextlib.contextmanager
def watch_conditions(decided: Callable[[torch.SymBool, bool], None]) -> Iterator[None]:
    """Call `decided` with each condition on sizes that Python code decides, and its answer."""

    def watched(plain: Callable[[torch.SymBool], bool]) -> Callable[[torch.SymBool], bool]:
        def decide(condition: torch.SymBool) -> bool:
            answer = plain(condition)
            decided(condition, answer)
            return answer

        return decide

    with patched("SymBool.__bool__", watched):
        yield


def is_truth_of_number(frame: FrameType) -> bool:
    """Check that a frame is the one in which torch decides whether a size is zero."""
    return frame.f_code is part("SymInt.__bool__").__code__


def unsolved() -> contextlib.AbstractContextManager[Any]:
    """Let torch.export solve no equations. It solves the guards of a capture for the sizes that its messages propose,
    which takes long, and fails for an equation of which sympy finds no solution or every size to be one."""
    name = "DimConstraints.solve"
    return patched(name, lambda _: lambda _: None) if has(name) else contextlib.nullcontext()


# Conditions that only values settle.

_SOME = 7  # a number to guess with: neither none nor one, and not many


@contextlib.contextmanager
def guessed_conditions(goes_on: Callable[[Exception], bool]) -> Iterator[None]:
    """Guess conditions and numbers that only values determine, where `goes_on` allows it, instead of raising."""

    def guessing(guess: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def replace(plain: Callable[[Any], Any]) -> Callable[[Any], Any]:
            def decide(asked: Any) -> Any:
                try:
                    return plain(asked)
                except Exception as error:
                    if not says(error, "data-dependent") or not goes_on(error):
                        raise
                    return guess(asked)

            return decide

        return replace

    with patched("SymBool.__bool__", guessing(_guessed_truth)), patched("SymInt.__index__", guessing(lambda _: 1)):
        yield


def _guessed_truth(condition: torch.SymBool) -> bool:
    """The truth of a condition where each number that only values tell is a small one."""
    env, asked = condition.node.shape_env, condition.node.expr
    numbers = {s: env.backed_var_to_val.get(s, sympy.Integer(_SOME)) for s in asked.free_symbols}
    return asked.xreplace(numbers) == sympy.true


def truth_number(condition: torch.SymBool | torch.SymInt) -> Any:
    """Return a formula of sizes that is 1 where a condition on sizes holds, else 0. A size holds if it is not zero.

    It is arithmetic, since torch cannot compute a choice (`Piecewise`) again in the graph of a branch.
    """
    node = condition.node
    expression = node.expr
    if isinstance(condition, torch.SymInt):
        return _zero_or_one(condition * condition)
    kind = type(expression)
    if not isinstance(expression, sympy.core.relational.Relational) or not expression.lhs.is_integer:
        return torch.sym_ite(condition, 1, 0)
    left, right = (_size_of(node, side) for side in expression.args)
    if kind in (sympy.Eq, sympy.Ne):
        unequal = _zero_or_one((left - right) * (left - right))
        return unequal if kind is sympy.Ne else 1 - unequal
    above = left - right if kind in (sympy.Gt, sympy.Ge) else right - left
    return _zero_or_one(torch.sym_max(above + (kind in (sympy.Ge, sympy.Le)), 0))


def _zero_or_one(number: Any) -> Any:
    return torch.sym_min(number, 1)


def _size_of(node: Any, formula: Any) -> Any:
    """A formula of sizes as a size."""
    if formula.is_Integer:
        return int(formula)
    number = formula.xreplace(node.shape_env.backed_var_to_val)
    return torch.SymInt(type(node)(formula, node.shape_env, int, int(number) if number.is_Integer else None))


# Sizes that are computed with a quotient of sizes: `scale = 800 / min(h, w)`, then `int(h * scale)`.
#
# Torch carries the whole formula into every size behind it. It can simplify none of it, takes minutes to bound it, and
# fails where a bound is infinite ("Cannot convert expression to float"). So such a number gets a name of its own as
# soon as it is rounded: it goes through a tensor, and is a number that only the running model knows. One that equals a
# size, `int(windows / (h * w / 4 / 4))` say, is that size already (`sampled_sizes.py`).

_ROUNDINGS = ("SymFloat.__trunc__", "SymFloat.__floor__", "SymFloat.__ceil__", "SymFloat.__round__")


@contextlib.contextmanager
def quotients_named() -> Iterator[None]:
    """Give whole numbers that are computed with a quotient of sizes a name, while a model is captured."""
    named: dict[tuple[int, str], Any] = {}
    busy: list[bool] = []  # torch calls the same method again while it records the call

    def naming(plain: Callable[..., Any]) -> Callable[..., Any]:
        def rounded(number: torch.SymFloat, *digits: Any) -> Any:
            if busy:
                return plain(number, *digits)
            busy.append(True)
            try:
                whole = plain(number, *digits)
                return _named(whole, named) if _has_quotient(number, whole) else whole
            finally:
                busy.pop()

        return rounded

    with contextlib.ExitStack() as stack:
        for method in _ROUNDINGS:
            stack.enter_context(patched(method, naming))
        yield


def _has_quotient(number: torch.SymFloat, whole: Any) -> bool:
    if not isinstance(whole, torch.SymInt):
        return False
    formula, env = number.node.expr, number.node.shape_env
    return has_quotient(whole.node.expr) or any(map(env.is_unbacked_symint, formula.free_symbols))


def _named(whole: Any, named: dict[tuple[int, str], Any]) -> Any:
    """The same formula has the same name, but each graph its own names: a branch is a graph inside of another."""
    mode = part("get_proxy_mode")()
    key = (id(mode.tracer), str(whole.node.expr)) if mode is not None else None
    if key is not None and key in named:
        return named[key]
    number = torch.full((), whole, dtype=torch.int64).item()
    if key is not None:
        named[key] = number
    return number


# Quotients of sizes, and conditions on them, that a branch or a loop takes from outside.
#
# A branch is a graph of its own, and sizes are among its inputs. Torch computes formulas of sizes again in it, with
# operators on whole numbers only.

_REBUILT: dict[str, Callable[..., Any]] = {
    "CeilToInt": math.ceil,
    "FloatPow": operator.pow,
    "FloatTrueDiv": operator.truediv,
    "FloorToInt": math.floor,
    "IntTrueDiv": operator.truediv,
    "Max": torch.sym_max,
    "Min": torch.sym_min,  # torch's own wrapper for several numbers is no operator of an exported program
    "PowByNatural": operator.pow,
    "PythonMod": operator.mod,
    "ToFloat": torch.sym_float,
    "TruncToInt": math.trunc,
}


class _Rebuilt(dict[type, Callable[..., Any]]):
    def get(self, kind: type, default: Any = None) -> Any:
        return _REBUILT.get(kind.__name__) or super().get(kind, default)


def sizes_of(number: torch.SymFloat | torch.SymBool) -> list[torch.SymInt]:
    """Return the sizes of which a number or a condition is made."""
    node = number.node
    if not node.is_symbolic() or not has("ShapeEnv"):
        return []
    if hasattr(number, _DIVIDED):
        return [getattr(number, _DIVIDED)[0]]
    hints = {s: int(n) for s, n in node.shape_env.backed_var_to_val.items()}
    sizes = [s for s in sorted(node.expr.free_symbols, key=str) if s.is_integer]
    return [torch.SymInt(type(node)(s, node.shape_env, int, hints.get(s))) for s in sizes]


# A quotient by a number remembers the size that was divided: `math.ceil(n / 8)` is `(n + 7) // 8` then, and
# `(n / 8).is_integer()`, for which torch has no operator that a graph could hold, is `n % 8 == 0`.

_DIVIDED = "torchport_divided"


def _remembering(plain: Callable[..., Any]) -> Callable[..., Any]:
    def divide(size: torch.SymInt, by: Any) -> Any:
        quotient = plain(size, by)
        if type(by) is int and by > 0 and isinstance(quotient, torch.SymFloat):
            setattr(quotient, _DIVIDED, (size, by))
        return quotient

    return divide


def _by_whole_numbers(rule: Callable[[Any, int], Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def replace(plain: Callable[..., Any]) -> Callable[..., Any]:
        def rounded(number: torch.SymFloat, *others: Any) -> Any:
            divided = getattr(number, _DIVIDED, None)
            return rule(*divided) if divided is not None else plain(number, *others)

        return rounded

    return replace


def _is_whole(plain: Callable[..., Any]) -> Callable[..., Any]:
    def is_integer(number: torch.SymFloat) -> Any:
        return torch.sym_float(math.trunc(number)) == number if number.node.is_symbolic() else plain(number)

    return is_integer


@contextlib.contextmanager
def whole_quotients() -> Iterator[None]:
    """Round quotients of sizes by a number in whole numbers, and let branches take other quotients from outside."""
    with contextlib.ExitStack() as stack:
        if has("SymInt.__truediv__", "SymFloat.is_integer", "_sympy_handlers", *_ROUNDINGS):
            stack.enter_context(patched("_sympy_handlers", lambda plain: lambda: _Rebuilt(plain())))
            stack.enter_context(patched("SymInt.__truediv__", _remembering))
            stack.enter_context(patched("SymFloat.is_integer", _is_whole))
            stack.enter_context(patched("SymFloat.is_integer", _by_whole_numbers(lambda n, by: n % by == 0)))
            stack.enter_context(patched("SymFloat.__ceil__", _by_whole_numbers(lambda n, by: (n + by - 1) // by)))
            stack.enter_context(patched("SymFloat.__floor__", _by_whole_numbers(lambda n, by: n // by)))
        yield


# The log in which torch writes the guards it adds.

_TRACE = "torch.__trace"  # with any handler at all, torch writes down every step for it


@contextlib.contextmanager
def guard_log(handler: logging.Handler) -> Iterator[None]:
    """Send what torch logs on symbolic shapes to a handler. All else that torch logs is dropped."""
    shapes = part("shapes_log") if has("shapes_log") else logging.getLogger("torch")
    names = [n for n in logging.root.manager.loggerDict if n == "torch" or n.startswith("torch.")]
    loggers = [logging.getLogger(n) for n in {*names, "torch", shapes.name}]
    saved = [(g, g.handlers[:], g.level, g.propagate) for g in loggers]
    disabled = logging.root.manager.disable
    for logger in loggers:
        logger.handlers = [logging.NullHandler()] if logger.name != _TRACE else []
        logger.propagate = False
    shapes.handlers = [handler]
    shapes.setLevel(logging.INFO)
    logging.disable(logging.NOTSET)
    try:
        yield
    finally:
        logging.disable(disabled)
        for logger, handlers, level, propagate in saved:
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(level)
