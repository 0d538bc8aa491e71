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
from torch.fx.experimental import proxy_tensor

from torchport.operators import symbolic

USED = "autograd functions translated by their symbolic"

_library = torch.library.Library("torchport", "FRAGMENT")
_numbers = itertools.count(1)
_translations: dict[Any, Callable[..., Any]] = {}

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
        return _listed(_shapes(plain, full))

    with proxy_tensor.disable_proxy_modes_tracing():
        answer = _shapes(plain, list(arguments))
    operator = _defined(function, len(tensors), len(_listed(answer)), forward)
    _translations[operator] = _translation(function, rest, places)
    result = operator(*tensors)
    return tuple(_listed(result)) if isinstance(answer, (list, tuple)) else result


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
        return symbolic.built(function.symbolic, full)  # type: ignore[attr-defined]

    return symbolic.with_parameters(translate, [f"t{n}" for n in range(len(places))])


def _listed(result: Any) -> list[torch.Tensor]:
    return list(result) if isinstance(result, (list, tuple)) else [result]


def _shapes(plain: Callable[..., Any], arguments: list[Any]) -> Any:
    """What the forward gives for fake tensors. One that needs their values, in C++ say, is run on random ones."""
    try:
        return plain(*arguments)
    except Exception as error:
        if not any(isinstance(a, torch.Tensor) for a in arguments):
            raise
        return _by_example(plain, arguments, error)


def _by_example(plain: Callable[..., Any], arguments: list[Any], error: Exception) -> Any:
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    with unset_fake_temporarily():
        real = [_random(a) if isinstance(a, torch.Tensor) else a for a in arguments]
        try:
            given = plain(*real)
        except Exception:  # noqa: BLE001 - the first one says more
            raise error from None
    shapes = [a.shape for a in arguments if isinstance(a, torch.Tensor)]
    symbols = {_hint(s): s for shape in shapes for s in shape if isinstance(s, torch.SymInt)}
    like = next(a for a in arguments if isinstance(a, torch.Tensor))
    outputs = [like.new_empty([symbols.get(s, s) for s in t.shape], dtype=t.dtype) for t in _listed(given)]
    return outputs if isinstance(given, (list, tuple)) else outputs[0]


def _random(tensor: torch.Tensor) -> torch.Tensor:
    sizes = [_hint(s) for s in tensor.shape]
    made = torch.rand(sizes) if tensor.dtype.is_floating_point else torch.zeros(sizes)
    return made.to(tensor.dtype)


def _hint(size: Any) -> int:
    """The size in the example."""
    return int(size.node.hint) if isinstance(size, torch.SymInt) else size
