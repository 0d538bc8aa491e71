"""What shapes a function of the user's gives, for symbolic sizes.

A function made of PyTorch operators tells by itself, on fake tensors. One that needs the numbers (C++, numpy) is run on
random ones at several sizes, and the sizes of its outputs are taken for sums of the inputs' sizes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchport.errors import CaptureError
from torchport.torch_compat import registries
from torchport.torch_compat.tracing import real_tensors, tree_flatten, tree_leaves, tree_structure, tree_unflatten


def inferred(function: Callable[..., Any], arguments: Sequence[Any], name: str) -> Any:
    """What the function gives for fake tensors.

    Args:
        function: takes the arguments by position.
        arguments: with fake tensors, whose sizes may be symbolic.
        name: for the error when the shapes cannot be told.
    """
    if registries.is_overload(function):  # an operator of C++ cannot take fake tensors: it came here for that
        why = CaptureError(f"{name} has no shape function, and does not run on random numbers")
        return _by_runs(function, arguments, name, why)
    try:
        return function(*arguments)
    except Exception as error:  # noqa: BLE001 - a function that cannot take fake tensors may raise anything
        return _by_runs(function, arguments, name, error)


def _by_runs(function: Callable[..., Any], arguments: Sequence[Any], name: str, error: Exception) -> Any:
    leaves, form = tree_flatten(list(arguments))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if not tensors:
        raise error
    symbols: dict[str, Any] = {str(s): s for t in tensors for s in t.shape if isinstance(s, torch.SymInt)}

    def run(sizes: dict[str, int]) -> list[Any]:
        given = [_random(leaf, sizes) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        return tree_leaves(function(*tree_unflatten(given, form)))

    hints = {text: int(s.node.hint) for text, s in symbols.items()}
    with real_tensors():
        try:
            example = run(hints)
        except Exception:  # noqa: BLE001 - it does not run on real tensors either: the first one says more
            raise error from None
        slopes = _slopes(run, hints, example, name)
    outputs = []
    for place, given in enumerate(example):
        sizes = [_sum(size, slopes.get((place, axis), {}), symbols, hints) for axis, size in enumerate(given.shape)]
        outputs.append(tensors[0].new_empty(sizes, dtype=given.dtype))
    with real_tensors():
        structure = tree_structure(function(*tree_unflatten([_sized(v, hints) for v in leaves], form)))
    return tree_unflatten(outputs, structure)


def _slopes(
    run: Callable[[dict[str, int]], list[Any]], hints: dict[str, int], example: list[Any], name: str
) -> dict[tuple[int, int], dict[str, int]]:
    """By how much each size of each output grows with each symbol, where it does."""
    found: dict[tuple[int, int], dict[str, int]] = {}
    done: set[str] = set()
    for text in hints:
        if text in done:
            continue
        together = [text]
        try:
            more = run({**hints, text: hints[text] + 1})
        except Exception:  # noqa: BLE001 - sizes that must be equal: those with the example's size move together
            together = [other for other in hints if hints[other] == hints[text]]
            more = run({**hints, **{other: hints[other] + 1 for other in together}})
        twice = run({**hints, **{other: hints[other] + 2 for other in together}})
        done |= {*together}
        for place, (one, two, three) in enumerate(zip(example, more, twice, strict=True)):
            for axis, (a, b, c) in enumerate(zip(one.shape, two.shape, three.shape, strict=True)):
                if b - a != c - b:
                    raise CaptureError(
                        f"axis {axis} of output {place} of {name} was {a}, {b} and {c} as a size grew by 1: "
                        "its shape cannot be told from runs",
                        next_step="give a shape function: @my_operator.shape, or torch.library.register_fake",
                    )
                if b != a:
                    found.setdefault((place, axis), {})[text] = b - a
    return found


def _sum(size: int, slopes: dict[str, int], symbols: dict[str, Any], hints: dict[str, int]) -> Any:
    rest = size - sum(slope * hints[text] for text, slope in slopes.items())
    total: Any = rest
    for text, slope in slopes.items():
        total = symbols[text] * slope + total
    return total


def _sized(leaf: Any, sizes: dict[str, int]) -> Any:
    return _random(leaf, sizes) if isinstance(leaf, torch.Tensor) else leaf


def _random(tensor: torch.Tensor, sizes: dict[str, int]) -> torch.Tensor:
    shape = [sizes[str(s)] if isinstance(s, torch.SymInt) else s for s in tensor.shape]
    made = torch.rand(shape) if tensor.dtype.is_floating_point else torch.zeros(shape)
    return made.to(tensor.dtype)


def by_position(function: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    """A function whose parameters may be keyword-only, called by position."""
    kinds = inspect.signature(function).parameters
    only = [n for n in names if n in kinds and kinds[n].kind is inspect.Parameter.KEYWORD_ONLY]

    def call(*arguments: Any) -> Any:
        given = dict(zip(names, arguments, strict=False))
        return function(*(v for n, v in given.items() if n not in only), **{n: given[n] for n in only if n in given})

    return call
