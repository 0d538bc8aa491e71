"""PyTorch's own operator database as a yardstick: its deterministic entries, forward, float32, first three samples."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from cases import Call, Case
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

SAMPLES = 3


class Sample(torch.nn.Module):
    """One call of an operator as a model: its tensors are the inputs, all else is fixed."""

    def __init__(self, operator: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self._operator = operator
        leaves, self._spec = pytree.tree_flatten((args, kwargs))
        self._rest = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self._places = [n for n, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def forward(self, *tensors: torch.Tensor) -> Any:
        leaves = list(self._rest)
        for place, tensor in zip(self._places, tensors, strict=True):
            leaves[place] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        return self._operator(*args, **kwargs)


def names() -> list[str]:
    """Every entry for float32 that is deterministic; in the database's order."""
    return [name for name, entry in _entries().items() if _is_deterministic(entry)]


def find(name: str) -> list[Case]:
    return list(_samples(_entries()[name]))


def _entries() -> dict[str, Any]:
    from torch.testing._internal.common_methods_invocations import op_db

    entries: dict[str, Any] = {}
    for entry in op_db:
        if torch.float32 in entry.dtypes:
            name = entry.name + (f".{entry.variant_test_name}" if entry.variant_test_name else "")
            entries.setdefault(name if name not in entries else f"{name}.again", entry)
    return entries


def _samples(entry: Any) -> Iterator[Case]:
    torch.manual_seed(0)
    for given in itertools.islice(entry.sample_inputs("cpu", torch.float32, requires_grad=False), SAMPLES):
        call = Call((given.input, *given.args), given.kwargs)
        yield Case(Sample(entry.op, call.args, call.kwargs), Call(tuple(t.detach().clone() for t in call.tensors())))


class _Draws(TorchDispatchMode):
    """Sees whether anything random is called, or memory is used that nothing was written to."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen |= torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


def _is_deterministic(entry: Any) -> bool:
    if entry.name.startswith(("empty", "new_empty", "jiterator")):  # nothing written there; for GPUs only
        return False
    draws = _Draws()
    for sample in _samples(entry):
        with draws, contextlib.suppress(RuntimeError, NotImplementedError):  # it counts all the same
            sample.answer(sample.example)
    return not draws.seen
