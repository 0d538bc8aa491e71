"""What shapes a function of the user's gives, for symbolic sizes.

A function made of PyTorch operators tells by itself, on fake tensors. One that needs the numbers (C++, numpy, `tolist`)
is run at several sizes, on the numbers of the example where they are known and on random ones elsewhere. Sizes of its
outputs that stay the same for other numbers are taken for sums of the inputs' sizes; of the others torch knows only
that they are sizes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from torchport.errors import CaptureError
from torchport.torch_compat import registries
from torchport.torch_compat.shape_env import fresh_size, has_fresh_sizes, without_fresh_sizes
from torchport.torch_compat.tracing import real_tensors, tree_flatten, tree_leaves, tree_unflatten

Examples = Callable[[], Sequence[Any]]
Place = tuple[int, int]  # an output, and one of its axes
Sizes = dict[str, int]  # a number for each symbolic size
Change = Callable[[torch.Tensor], torch.Tensor]
_UNKNOWN = 4  # for a size of which the capture has no number

# Other numbers than the example's, to see which sizes depend on them. They lie between the example's and zero: a kernel
# in C++ may take a number for an index, and check nothing.
_CHANGES: tuple[Change, ...] = (
    lambda t: t / 2,
    lambda t: t / (1 + torch.arange(t.numel())).view(t.shape),
)


def no_examples() -> Sequence[Any]:
    """Return the numbers of a call of which none are known."""
    return ()


def inferred(
    function: Callable[..., Any], arguments: Sequence[Any], name: str, examples: Examples = no_examples
) -> Any:
    """What the function gives for fake tensors.

    Args:
        function: takes the arguments by position.
        arguments: with fake tensors, whose sizes may be symbolic.
        name: for the error when the shapes cannot be told.
        examples: returns the arguments of the call in the example, if they are known; on the device ``meta`` where only
            the sizes are. It is called when they are needed.
    """
    if registries.is_overload(function):  # an operator of C++ cannot take fake tensors: it came here for that
        why = CaptureError(f"{name} has no shape function, and does not run on random numbers")
        return _by_runs(function, arguments, name, why, examples)
    try:
        with without_fresh_sizes():
            result = function(*arguments)
    except Exception as error:  # noqa: BLE001 - a function that cannot take fake tensors may raise anything
        return _by_runs(function, arguments, name, error, examples)
    # Run again where sizes come from values, so that torch expects them
    return function(*arguments) if has_fresh_sizes(tree_leaves(result), tree_leaves(list(arguments))) else result


class _Runs:
    """A function, to be run at other sizes and on other numbers than those of the example."""

    def __init__(self, function: Callable[..., Any], arguments: Sequence[Any], examples: Sequence[Any]) -> None:
        self._function = function
        self._generator = torch.Generator().manual_seed(0)  # torch runs the capture again: the shapes must be the same
        self.leaves, self._form = tree_flatten(list(arguments))
        given = tree_leaves(list(examples))
        pairs = enumerate(zip(self.leaves, given, strict=True)) if len(given) == len(self.leaves) else ()
        self.known = {n: known for n, (leaf, known) in pairs if _is_like(leaf, known)}
        self.symbols: dict[str, Any] = {}
        self.hints: Sizes = {}
        for n, leaf in enumerate(self.leaves):
            for axis, size in enumerate(leaf.shape if isinstance(leaf, torch.Tensor) else ()):
                if isinstance(size, torch.SymInt):
                    self.symbols[str(size)] = size
                    self.hints[str(size)] = _number(size, axis, self.known.get(n))

    def __call__(self, sizes: Sizes, changes: Mapping[int, Change] = {}) -> tuple[list[Any], Any]:
        """Return the leaves of the function's output at these sizes, and their structure."""
        given = [self._value(n, sizes, changes.get(n)) for n in range(len(self.leaves))]
        return tree_flatten(self._function(*tree_unflatten(given, self._form)))

    def shapes(self, sizes: Sizes, changes: Mapping[int, Change] = {}) -> list[tuple[int, ...]]:
        return [tuple(leaf.shape) for leaf in self(sizes, changes)[0]]

    def _value(self, n: int, sizes: Sizes, change: Change | None) -> Any:
        leaf = self.leaves[n]
        if not isinstance(leaf, torch.Tensor):
            return leaf
        shape = [sizes[str(s)] if isinstance(s, torch.SymInt) else s for s in leaf.shape]
        known = self.known.get(n)
        if known is None or known.is_meta or not known.numel():
            drawn = torch.rand(shape, generator=self._generator) if leaf.dtype.is_floating_point else torch.zeros(shape)
            return drawn.to(leaf.dtype)
        for axis, size in enumerate(shape):  # the example's numbers, repeated where the size is larger
            known = known.index_select(axis, torch.arange(size) % known.shape[axis])
        return change(known).to(leaf.dtype) if change is not None else known.clone()


def _is_like(leaf: Any, known: Any) -> bool:
    both = isinstance(leaf, torch.Tensor) and isinstance(known, torch.Tensor)
    return both and leaf.dtype == known.dtype and leaf.dim() == known.dim()


def _number(size: torch.SymInt, axis: int, known: torch.Tensor | None) -> int:
    if size.node.has_hint():
        return int(size.node.hint)
    return known.shape[axis] if known is not None else _UNKNOWN


def _by_runs(
    function: Callable[..., Any], arguments: Sequence[Any], name: str, error: Exception, examples: Examples
) -> Any:
    tensors = [leaf for leaf in tree_leaves(list(arguments)) if isinstance(leaf, torch.Tensor)]
    if not tensors:
        raise error
    runs = _Runs(function, arguments, examples())
    with real_tensors():
        try:
            example, structure = runs(runs.hints)
        except Exception:  # noqa: BLE001 - it does not run on real tensors either: the first one says more
            raise error from None
        shapes = [tuple(leaf.shape) for leaf in example]
        by_values = _sizes_by_values(runs, shapes, name)
        slopes = _slopes(runs, shapes, by_values, name)
    fresh = {key: fresh_size() for key in dict.fromkeys(by_values.values())}
    outputs = []
    for place, given in enumerate(example):
        sizes = [
            fresh[by_values[place, axis]]
            if (place, axis) in by_values
            else _sum(size, slopes.get((place, axis), {}), runs)
            for axis, size in enumerate(given.shape)
        ]
        outputs.append(tensors[0].new_empty(sizes, dtype=given.dtype))
    return tree_unflatten(outputs, structure)


def _sizes_by_values(runs: _Runs, shapes: list[tuple[int, ...]], name: str) -> dict[Place, Any]:
    """The sizes that differ for other numbers, each with a key; the same axis of several outputs may have one key.

    Boxes, scores and labels that a threshold left are as many.
    """
    others = [
        shapes,
        runs.shapes(runs.hints),
        runs.shapes(runs.hints),
    ]  # what is not known of the example is drawn anew
    for n, known in runs.known.items():
        for change in _CHANGES if known.numel() and not known.is_meta else ():
            try:
                others.append(runs.shapes(runs.hints, {n: change}))
            except Exception:  # noqa: BLE001 - the function refuses these numbers
                continue
    if any([len(shape) for shape in other] != [len(shape) for shape in shapes] for other in others):
        raise CaptureError(
            f"the number of axes of an output of {name} depends on values", next_step="give it outputs of fixed ranks"
        )
    found: dict[Place, Any] = {}
    for place, shape in enumerate(shapes):
        for axis in range(len(shape)):
            sizes = tuple(other[place][axis] for other in others)
            if len(set(sizes)) > 1:
                found[place, axis] = (axis, sizes)
    return found


def _slopes(
    runs: _Runs, shapes: list[tuple[int, ...]], by_values: Mapping[Place, Any], name: str
) -> dict[Place, dict[str, int]]:
    """By how much each size of each output grows with each symbol, where it does."""
    found: dict[Place, dict[str, int]] = {}
    done: set[str] = set()
    hints = runs.hints
    for text in hints:
        if text in done:
            continue
        together = [text]
        try:
            more = runs.shapes({**hints, text: hints[text] + 1})
        except Exception:  # noqa: BLE001 - sizes that must be equal: those with the example's size move together
            together = [other for other in hints if hints[other] == hints[text]]
            more = runs.shapes({**hints, **{other: hints[other] + 1 for other in together}})
        twice = runs.shapes({**hints, **{other: hints[other] + 2 for other in together}})
        done |= {*together}
        for place, (one, two, three) in enumerate(zip(shapes, more, twice, strict=True)):
            for axis, (a, b, c) in enumerate(zip(one, two, three, strict=True)):
                if (place, axis) in by_values:
                    continue
                if b - a != c - b:
                    raise CaptureError(
                        f"axis {axis} of output {place} of {name} was {a}, {b} and {c} as a size grew by 1: "
                        "its shape cannot be learned from runs",
                        next_step="give a shape function: @my_operator.shape, or torch.library.register_fake",
                    )
                if b != a:
                    found.setdefault((place, axis), {})[text] = b - a
    return found


def _sum(size: int, slopes: dict[str, int], runs: _Runs) -> Any:
    total: Any = size - sum(slope * runs.hints[text] for text, slope in slopes.items())
    for text, slope in slopes.items():
        total = runs.symbols[text] * slope + total
    return total


def by_position(function: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    """A function whose parameters may be keyword-only, called by position."""
    kinds = inspect.signature(function).parameters
    only = [n for n in names if n in kinds and kinds[n].kind is inspect.Parameter.KEYWORD_ONLY]

    def call(*arguments: Any) -> Any:
        given = dict(zip(names, arguments, strict=False))
        return function(*(v for n, v in given.items() if n not in only), **{n: given[n] for n in only if n in given})

    return call
