"""Bounds of dynamic dimensions: the sizes from which on, or the multiples at which, a model is right.

A network that halves its picture three times and joins both ends fails or is wrong at sizes that nobody feeds. The
bound is searched with a few runs, so that the user gets a line to paste instead of a refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from torchport.results import Bound, Case, Dim, Proof

Works = Callable[[int], bool]

_STEPS = (2, 4, 8, 16, 32, 64)


def find_bounds(proof: Proof, example: Mapping[str, int], run: Callable[[Mapping[str, int]], Case]) -> dict[str, Bound]:
    """Return bounds that exclude every case that failed; empty if there are none of the known kinds.

    Args:
        proof: with failures.
        example: the size of each dimension in the example.
        run: runs one more case at other sizes.
    """
    failures = [case.sizes for case in proof.failures]
    if any(all(sizes.get(n, s) == s for n, s in example.items()) for sizes in failures):
        return {}  # it fails at the example's own sizes
    bounds: dict[str, Bound] = {}
    for name, size in example.items():
        alone = [s[name] for s in failures if [n for n in s if s[n] != example[n]] == [name]]
        if alone:
            bound = _bound(size, alone, partial(_works, run, name))
            if bound is None:
                return {}
            bounds[name] = bound
    return bounds if all(not _allowed(sizes, bounds) for sizes in failures) else {}


def _works(run: Callable[[Mapping[str, int]], Case], name: str, size: int) -> bool:
    return run({name: size}).verdict not in ("fail", "error")


def _allowed(sizes: Mapping[str, int], bounds: Mapping[str, Bound]) -> bool:
    return all(bounds.get(name, Bound()).allows(size) for name, size in sizes.items())


def _bound(size: int, failing: Sequence[int], works: Works) -> Bound | None:
    """Return the weakest bound that excludes the failing sizes: a smallest size, else multiples."""
    if any(works(n) for n in sorted(set(failing))[:2]):
        return None  # other values do not fail there: the size is not the cause
    for step in (1, *_STEPS):
        bad = [n for n in failing if n % step == 0]
        if size % step or any(n > size for n in bad):
            continue
        if not bad and not works(step):
            bad = [step]
        low = _smallest(size, max(bad), step, works) if bad else step
        if all(works(n) for n in _probes(size, low, step)):
            return Bound(low if bad else 0, step)
    return None


def _smallest(size: int, failing: int, step: int, works: Works) -> int:
    """Return the smallest multiple of `step` that works, by bisection between one that fails and the example's."""
    low, high = failing // step, size // step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if works(middle * step) else (middle, high)
    return high * step


def _probes(size: int, low: int, step: int) -> Iterator[int]:
    """Sizes that a bound allows, and that were perhaps not tried: its neighbors and some beyond the example."""
    wanted = (low, low + step, (low + size) // 2 // step * step, size + step, size + 3 * step)
    return (n for n in dict.fromkeys(wanted) if n != size and n >= max(low, step))


def smallest_step(size: int, accepts: Works, largest: int) -> int:
    """Return the smallest divisor of `largest` by which a model lets a size grow or shrink; 0 if there is none.

    A network that halves its input five times takes multiples of 32: from 64 that is found by 96 and 80.

    Args:
        size: the example's.
        accepts: runs the model at another size.
        largest: the size itself, or a divisor of it by which it is known to move.
    """

    def moves(step: int) -> bool:
        return accepts(size + step) or (step < size and accepts(size - step))

    step = largest
    for factor in (2, 3, 5, 7):
        while step % factor == 0 and step > factor and moves(step // factor):
            step //= factor
    return step if step < size or moves(size) else 0


def multiples(dim: Dim, size: int, step: int) -> dict[str, list[int]]:
    """Return the sizes to try by role, for a dimension that moves in steps: one step, its neighbors, some farther."""
    roles = {
        "smallest": [step],
        "neighbor": [size + step, size - step],
        "prime": [size + 3 * step, size - 2 * step, size + 2 * step],
    }
    return {role: [n for n in sizes if n >= 1 and n != size and dim.allows(n)] for role, sizes in roles.items()}


def as_dims(dims: Mapping[int, Dim], bounds: Mapping[str, Bound]) -> dict[int, Dim]:
    """Return the axes of an input with their dimensions bounded; multiples become a factor, ``8*height``."""
    return {axis: _bounded(dim, bounds[dim.root]) if dim.root in bounds else dim for axis, dim in dims.items()}


def _bounded(dim: Dim, bound: Bound) -> Dim:
    if bound.step == 1:
        return Dim(dim.name, max(dim.min, bound.min), dim.max, dim.root, dim.scale, dim.offset)
    top = None if dim.max is None else dim.max // bound.step
    scale = dim.scale * bound.step
    low = -(-max(dim.min, bound.min) // bound.step)
    return Dim(
        f"{scale}*{dim.root}" + (f" + {dim.offset}" if dim.offset else ""), low, top, dim.root, scale, dim.offset
    )


def dims_text(name: str, dims: Mapping[int, Dim]) -> str:
    """Return the dynamic axes of an input as the command line takes them: ``x:2=height[8..],3=8*width``."""
    return f"{name}:" + ",".join(f"{axis}={_dim_text(dim)}" for axis, dim in dims.items())


def _dim_text(dim: Dim) -> str:
    top = "" if dim.max is None else dim.max
    return dim.name + (f"[{dim.min or ''}..{top}]" if dim.min > 1 or dim.max is not None else "")
