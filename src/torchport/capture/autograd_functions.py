"""`torch.autograd.Function` with a `symbolic`: one operator of the graph, translated by that symbolic.

torch.export traces through such a function and loses what its author wrote for ONNX; a forward in C++ it may not get
through at all. Here each call becomes an operator of its own, whose shapes come from the forward, and the symbolic
builds the nodes. A function without a symbolic is traced through as before. TorchScript honors symbolics by itself.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from torchport.operators import fake_shapes, symbolic
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


@contextlib.contextmanager
def as_operators() -> Iterator[list[str]]:
    """Calls of such functions become operators, for the time of a capture.

    Yields:
        `USED`, once there was such a call.
    """
    own = list(_with_symbolic(torch.autograd.Function))
    used: list[str] = []
    for function in own:
        function.apply = _operator_call(function, function.apply, used)  # type: ignore[method-assign]
    try:
        yield used
    finally:
        for function in own:
            del function.apply


def _with_symbolic(base: Function) -> Iterator[Function]:
    """Classes of the user's with a symbolic; a class that has an `apply` of its own is left alone."""
    for found in base.__subclasses__():
        if hasattr(found, "symbolic") and "apply" not in vars(found) and not found.__module__.startswith("torch."):
            yield found
        yield from _with_symbolic(found)


def _operator_call(function: Function, plain: Callable[..., Any], used: list[str]) -> Callable[..., Any]:
    def apply(*arguments: Any) -> Any:
        if not torch.compiler.is_exporting():
            return plain(*arguments)
        used[:] = [USED]
        return _called(function, plain, arguments)

    return apply


def _called(function: Function, plain: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    places = [n for n, a in enumerate(arguments) if isinstance(a, torch.Tensor)]
    tensors = [arguments[n] for n in places]
    rest = [None if n in places else a for n, a in enumerate(arguments)]

    def forward(*given: torch.Tensor) -> list[torch.Tensor]:
        full = list(rest)
        for place, tensor in zip(places, given, strict=True):
            full[place] = tensor
        return _listed(fake_shapes.inferred(plain, full, function.__name__))

    with disable_proxy_modes_tracing():
        answer = fake_shapes.inferred(plain, list(arguments), function.__name__)
    key = (function, len(arguments), len(_listed(answer)), _as_key(rest), tuple(places))
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
