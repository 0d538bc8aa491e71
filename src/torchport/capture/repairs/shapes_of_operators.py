"""Operators of a C++ library that came without a function for their shapes, which torch.export asks for.

They are run on random numbers at a few sizes, and their shapes taken from that. What is learned so is registered with
torch as the user could have done with `torch.library.register_fake`, and stays.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from torchport.capture.repairs.repair import capture_repair
from torchport.operators import fake_shapes
from torchport.torch_compat import registries

_OF_TORCH = ("aten", "prims", "prim", "torchport", "quantized", "quantized_decomposed", "higher_order")


def _needs_shapes_of_operators(error: Exception) -> bool:
    seen: BaseException | None = error
    while seen is not None:
        if type(seen).__name__ == "UnsupportedOperatorException":
            return True
        seen = seen.__cause__ or seen.__context__
    return False


@capture_repair("shapes of operators learned from runs", after=_needs_shapes_of_operators)
@contextlib.contextmanager
def shapes_of_operators(target: Any) -> Iterator[list[str]]:
    learned: list[str] = []
    with _Learn(learned):
        yield learned


class _Learn(TorchFunctionMode):
    def __init__(self, learned: list[str]) -> None:
        super().__init__()
        self.learned = learned

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for overload in _overloads(func):
            if overload._schema.name.partition("::")[0] not in _OF_TORCH and not registries.has_shapes(overload):
                _register(overload)
                self.learned.append(overload._schema.name)
        return func(*args, **(kwargs or {}))


def _overloads(func: Any) -> list[Any]:
    if isinstance(func, torch._ops.OpOverloadPacket):
        return [getattr(func, name) for name in func.overloads()]
    return [func] if isinstance(func, torch._ops.OpOverload) else []


def _register(overload: Any) -> None:
    names = [a.name for a in overload._schema.arguments]
    name = overload._schema.name + (f".{overload._overloadname}" if overload._overloadname != "default" else "")

    def fake(*args: Any, **kwargs: Any) -> Any:
        given = [*args, *(kwargs[n] for n in names[len(args) :] if n in kwargs)]
        return fake_shapes.inferred(overload, given, name)

    torch.library.register_fake(name, fake)
