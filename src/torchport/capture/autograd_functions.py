"""`torch.autograd.Function` with a `symbolic`: one operator of the graph, translated by that symbolic.

torch.export traces through such a function and loses what its author wrote for ONNX; a forward in C++ it may not get
through at all. Here each call becomes an operator of its own, whose shapes come from the forward, and the symbolic
builds the nodes. A function without a symbolic is traced through as before. TorchScript honors symbolics by itself.

A forward that computes with the values of a tensor is run to learn its shapes, on the values of the example: the model
is run once with the calls recorded, and captured again.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from torchport.errors import CaptureError
from torchport.operators import fake_shapes, symbolic
from torchport.torch_compat.shape_env import without_fresh_sizes
from torchport.torch_compat.tracing import disable_proxy_modes_tracing

USED = "autograd functions translated by their symbolic"

_library = torch.library.Library("torchport", "FRAGMENT")
_numbers = itertools.count(1)
_translations: dict[Any, Callable[..., Any]] = {}
_operators: dict[Any, Any] = {}  # by the call

Function = type[torch.autograd.Function]


def translations() -> dict[Any, Callable[..., Any]]:
    """For the operators made so far."""
    return dict(_translations)


class Calls:
    """The calls of such functions with the example.

    Attributes:
        needed: that a capture needed them, and they were not recorded yet.
    """

    def __init__(self) -> None:
        self.needed = False
        self._recorded: dict[Function, list[list[Any]]] | None = None
        self._numbers: dict[Function, Iterator[int]] = {}

    def record(self, run: Callable[[], Any]) -> None:
        """Run the model with `run`, and keep the arguments of each call."""
        self._recorded, self.needed = {}, False
        recorded = self._recorded

        def keep(function: Function, arguments: Sequence[Any]) -> Any:
            recorded.setdefault(function, []).append([_kept(a) for a in arguments])
            return NotImplemented

        with _replaced(keep), contextlib.suppress(Exception):  # calls that are not recorded run on random numbers
            run()

    def started(self) -> None:
        """Count the calls of a capture from the first one on."""
        self._numbers = {}

    def examples(self, function: Function, arguments: Sequence[Any]) -> Callable[[], list[Any]]:
        """Return a function that gives the arguments of this call in the example: of the same number, if it is like it.

        torch may run a model several times for one capture.
        """
        number = next(self._numbers.setdefault(function, itertools.count()))

        def found() -> list[Any]:
            if self._recorded is None:
                self.needed = True
                raise CaptureError(f"the values that {function.__name__} is called with are needed")
            calls = self._recorded.get(function, [])
            first = calls[number % len(calls) :][:1] if calls else []
            return next((c for c in (*first, *calls) if _fits(c, arguments)), [])

        return found


_MOST = 1024  # numbers of a tensor that are kept


def _kept(argument: Any) -> Any:
    if not isinstance(argument, torch.Tensor):
        return None
    return argument.detach().cpu().clone() if argument.numel() <= _MOST else argument.detach().to("meta")


def _fits(call: Sequence[Any], arguments: Sequence[Any]) -> bool:
    return [_sizes(a) for a in call] == [_sizes(a) for a in arguments] if len(call) == len(arguments) else False


def _sizes(argument: Any) -> Any:
    return (argument.dtype, argument.dim()) if isinstance(argument, torch.Tensor) else None


@contextlib.contextmanager
def as_operators(calls: Calls) -> Iterator[list[str]]:
    """Calls of such functions become operators, for the time of a capture.

    Yields:
        `USED`, once there was such a call.
    """
    used: list[str] = []
    calls.started()

    def call(function: Function, arguments: Sequence[Any]) -> Any:
        if not torch.compiler.is_exporting():
            return NotImplemented
        used[:] = [USED]
        return _called(function, arguments, calls.examples(function, arguments))

    with _replaced(call):
        yield used


_plain: list[Function] = []  # functions whose own forward is wanted


@contextlib.contextmanager
def _replaced(call: Callable[[Function, Sequence[Any]], Any]) -> Iterator[None]:
    """Replace the forward of every such function by `call`, for a while. Where that gives NotImplemented, its own runs.

    An `apply` may have been bound to a name before, ``my_add = MyAdd.apply``; it looks the forward up at each call.
    """
    # The plain ones first: a class would inherit what its base was given
    own = {function: (function.forward, vars(function).get("forward")) for function in _with_symbolic()}
    for function, (forward, _) in own.items():
        function.forward = staticmethod(_forward(function, forward, call))  # type: ignore[method-assign]
    try:
        yield
    finally:
        for function, (_, defined) in own.items():
            if defined is None:
                del function.forward
            else:
                function.forward = defined  # type: ignore[method-assign]


def _with_symbolic(base: Function = torch.autograd.Function) -> Iterator[Function]:
    """Classes of the user's with a symbolic."""
    for found in base.__subclasses__():
        if hasattr(found, "symbolic") and not found.__module__.startswith("torch."):
            yield found
        yield from _with_symbolic(found)


def _forward(
    function: Function, own: Callable[..., Any], call: Callable[[Function, Sequence[Any]], Any]
) -> Callable[..., Any]:
    has_context = function.setup_context is torch.autograd.Function.setup_context

    def forward(*given: Any) -> Any:
        answer = NotImplemented if function in _plain else call(function, given[1:] if has_context else given)
        return own(*given) if answer is NotImplemented else answer

    return forward


def _applied(function: Function) -> Callable[..., Any]:
    """Return the function's `apply`, with its own forward."""

    def apply(*arguments: Any) -> Any:
        _plain.append(function)
        try:
            return function.apply(*arguments)
        finally:
            _plain.remove(function)

    return apply


def _called(function: Function, arguments: Sequence[Any], examples: Callable[[], list[Any]]) -> Any:
    plain = _applied(function)
    places = [n for n, a in enumerate(arguments) if isinstance(a, torch.Tensor)]
    tensors = [arguments[n] for n in places]
    rest = [None if n in places else a for n, a in enumerate(arguments)]

    known: list[Any] = []  # found once: torch runs the operator again later, to learn the shapes of the program

    def values() -> list[Any]:
        known[:] = known or examples()
        return known

    def forward(*given: torch.Tensor) -> list[torch.Tensor]:
        full = list(rest)
        for place, tensor in zip(places, given, strict=True):
            full[place] = tensor
        return _listed(fake_shapes.inferred(plain, full, function.__name__, values))

    with disable_proxy_modes_tracing(), without_fresh_sizes():
        answer = fake_shapes.inferred(plain, list(arguments), function.__name__, values)
    key = (function, len(arguments), len(_listed(answer)), _as_key(rest), tuple(places), _values_key(known))
    operator = _operators.get(key) if _as_key(rest) is not None else None
    if operator is None:
        operator = _operators[key] = _defined(function, len(tensors), len(_listed(answer)), forward)
        _translations[operator] = _translation(function, rest, places)
    result = operator(*tensors)
    return tuple(_listed(result)) if isinstance(answer, (list, tuple)) else result


def _as_key(rest: Sequence[Any]) -> Any:
    """Arguments to tell calls apart by; None if they cannot be compared. The same call is the same operator: exporting
    a model twice gives the same names."""
    plain = all(a is None or isinstance(a, (bool, int, float, str, torch.dtype)) for a in rest)
    return repr(list(rest)) if plain else None


def _values_key(known: Sequence[Any]) -> str:
    return repr([t.tolist() if isinstance(t, torch.Tensor) and not t.is_meta else None for t in known])


def _defined(function: Function, inputs: int, outputs: int, forward: Callable[..., list[torch.Tensor]]) -> Any:
    name = f"{function.__name__.lower()}_{next(_numbers)}"
    given = ", ".join(f"Tensor t{n}" for n in range(inputs))
    back = "Tensor" if outputs == 1 else f"({', '.join(['Tensor'] * outputs)})"
    _library.define(f"{name}({given}) -> {back}")
    fake = (lambda *t: forward(*t)[0]) if outputs == 1 else (lambda *t: tuple(forward(*t)))
    torch.library.register_fake(f"torchport::{name}", fake, lib=_library)
    return getattr(torch.ops.torchport, name).default


def _translation(function: Function, rest: Sequence[Any], places: list[int]) -> Callable[..., Any]:
    def translate(*values: Any) -> Any:
        full = list(rest)
        for place, value in zip(places, values, strict=True):
            full[place] = value
        source = symbolic.Source(function.__name__, function.apply)
        return symbolic.built(function.symbolic, full, source)  # type: ignore[attr-defined]

    return symbolic.with_parameters(translate, [f"t{n}" for n in range(len(places))])


def _listed(result: Any) -> list[torch.Tensor]:
    return list(result) if isinstance(result, (list, tuple)) else [result]
