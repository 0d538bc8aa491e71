"""Which questions to put to both models: sizes never seen, values beyond the example's."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Literal

import numpy as np

from torchport.results import Dim
from torchport.tensors import Array

Values = Literal["in turn", "kept", "example", "flipped", "zeros", "ones", "larger", "huge", "tiny", "random", "padded"]

_FEW = 4  # an example with at most so many different values is a mask or a flag, not a measurement
_STEPS = {"huge": 1, "tiny": -1, "ones": -2}  # how far integers are moved where floats are scaled
_SCALES = {"larger": 10.0, "huge": 1e4, "tiny": 1e-4}
_MOST_PAIRS = 10
_TURN = 3  # the seed of numbers in turn from 0 on; the next are from 1 on, and so forth
_HEAVY = 1 << 18  # bytes of example inputs


@dataclasses.dataclass(frozen=True)
class ProofInput:
    """One input of the model in question: the example array, and the axes that may vary.

    Attributes:
        counts: the dimension whose steps the values count, for an input of lengths; see `with_lengths`.
    """

    name: str
    example: Array
    dims: Mapping[int, Dim] = dataclasses.field(default_factory=dict)
    counts: str = ""

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The input's shape when the roots have `sizes`; others stay as in the example."""
        shape = list(self.example.shape)
        for axis, dim in self.dims.items():
            if dim.root in sizes:
                shape[axis] = dim.size(sizes[dim.root])
        return tuple(shape)


@dataclasses.dataclass(frozen=True)
class Question:
    """One case to try: which sizes, which values."""

    label: str
    values: Values
    seed: int
    sizes: Mapping[str, int]


def roots(inputs: Sequence[ProofInput]) -> dict[str, Dim]:
    """Each independent dimension by name, with the tightest of the bounds given for it."""
    found: dict[str, Dim] = {}
    for dim in (d for i in inputs for d in i.dims.values()):
        known = found.get(dim.root, Dim(dim.root, min=dim.min, max=dim.max))
        tops = [m for m in (known.max, dim.max) if m is not None]
        found[dim.root] = Dim(dim.root, min=max(known.min, dim.min), max=min(tops) if tops else None)
    return found


def example_sizes(inputs: Sequence[ProofInput]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for i in inputs:
        for axis, dim in i.dims.items():
            root = dim.root_size(i.example.shape[axis])
            if root is not None:
                sizes.setdefault(dim.root, root)
    return sizes


def with_lengths(inputs: Sequence[ProofInput]) -> tuple[ProofInput, ...]:
    """The inputs, lengths among them recognized: one integer a row, called so, none above some dimension's size.

    At another size other lengths are needed: no row may be longer than the sequence is.
    """
    sizes = example_sizes(inputs)
    return tuple(dataclasses.replace(i, counts=_counted(i, sizes)) for i in inputs)


def _counted(given: ProofInput, sizes: Mapping[str, int]) -> str:
    example = given.example
    if "len" not in given.name.lower() or example.ndim != 1 or example.dtype.kind not in "iu" or not example.size:
        return ""
    own = {d.root for d in given.dims.values()}
    fitting = [(size, root) for root, size in sizes.items() if root not in own and size >= example.max()]
    return min(fitting)[1] if fitting and example.min() >= 0 else ""


def is_heavy(inputs: Sequence[ProofInput]) -> bool:
    """Whether one more row of the example costs enough to be careful with."""
    return sum(i.example.nbytes for i in inputs) > _HEAVY


def is_batch(root: str, inputs: Sequence[ProofInput]) -> bool:
    """Whether a dimension is only ever the first axis: rows of a batch, of which one is as good as many."""
    return all(axis == 0 for i in inputs for axis, dim in i.dims.items() if dim.root == root)


def value_questions(inputs: Sequence[ProofInput], sizes: Mapping[str, int]) -> list[Question]:
    """Other values, at the sizes given."""
    has_floats = any(i.example.dtype.kind not in "biu" for i in inputs)
    kinds: list[tuple[str, Values, int]] = [("random", "random", 1)]
    if has_floats:
        kinds += [("sign flipped", "flipped", 0), ("zeros", "zeros", 0), ("larger", "larger", 2)]
    else:
        kinds += [("random again", "random", 2)]
    if any(i.example.dtype.kind in "iu" and i.example.size and i.example.min() >= 0 for i in inputs):
        kinds += [("numbers in turn", "in turn", _TURN)]  # 0 among them, which is often padding and seldom drawn
        if any(_is_number(i) for i in inputs):
            kinds += [(f"number {n}", "in turn", _TURN + n) for n in (1, 2)]  # a size, perhaps: 1 is a case of its own
    return [Question(label, values, seed, dict(sizes)) for label, values, seed in kinds]


def _is_number(given: ProofInput) -> bool:
    """A single whole number, of which a random draw shows nothing new: its range is the example's value."""
    return given.example.dtype.kind in "iu" and given.example.size == 1 and not given.dims and given.example.min() >= 0


def padding_questions(inputs: Sequence[ProofInput], sizes: Mapping[str, int]) -> list[Question]:
    """Masks as users have them, ones and then zeros in each row: chance hardly ever draws such a one."""
    return [Question("padded", "padded", 4, dict(sizes))] if any(map(_is_mask, inputs)) else []


def _is_mask(given: ProofInput) -> bool:
    """Two or more axes of zeros and ones. All ones may be counts or types, unless the name says mask."""
    example = given.example
    if example.ndim < 2 or example.dtype.kind not in "biu" or not np.isin(example, (0, 1)).all():
        return False
    return example.dtype.kind == "b" or np.unique(example).size == 2 or "mask" in given.name.lower()


def _padded(example: Array, shape: tuple[int, ...]) -> Array:
    """Each row keeps fewer than the one before it, the first all; zeros mark padding unless the example is mostly
    zeros (PyTorch's `key_padding_mask` marks it with True)."""
    length = shape[-1]
    rows = int(np.prod(shape[:-1]))
    kept = np.maximum(length - np.arange(rows) % max(length, 1), 1)
    real = np.arange(length) < kept[:, None]
    marks_padding = example.dtype.kind == "b" and example.mean() < 0.5 if example.size else False
    return (~real if marks_padding else real).reshape(shape).astype(example.dtype)


def branch_questions(sizes: Mapping[str, int], rounds: int) -> list[Question]:
    """More values, to send a branch that the capture may have frozen the other way."""
    kinds: list[Values] = ["huge", "tiny", "ones"]
    found = [Question(f"branch {kind}", kind, 10, dict(sizes)) for kind in kinds]
    return found + [Question(f"branch random {n + 1}", "random", 20 + n, dict(sizes)) for n in range(rounds)]


def size_candidates(dim: Dim, size: int, avoid: Sequence[int], *, heavy: bool = False) -> dict[str, list[int]]:
    """For one dimension, the sizes to try by role, best first; later ones are tried when PyTorch refuses earlier.

    The neighbor may be far: a network that halves its input five times takes multiples of 32 only.

    Args:
        dim: the dimension's bounds.
        size: its size in the example.
        avoid: sizes of other dimensions, which an unseen prime should not equal.
        heavy: the inputs are large, pictures say: keep to sizes close by.
    """
    steps = [size + s for k in range(8) for s in (1 << k, -(1 << k))]
    multiples = [size * 2, size // 2, size * 3]
    primes = _primes_for(size, avoid, heavy=heavy)
    roles = {
        "smallest": [1, 2] if size > 1 else [],
        "neighbor": [] if primes[:1] == [size + 1] else [*steps, *multiples],
        "prime": [*primes, *(size + 2 * s for s in (1, 2, 4, 8, 16, 32, 64)), *multiples],
    }
    return {
        role: [s for s in dict.fromkeys(sizes) if s != size and s >= 1 and dim.allows(s)]
        for role, sizes in roles.items()
    }


def _primes_for(size: int, avoid: Sequence[int], *, heavy: bool) -> list[int]:
    """Primes near `size` but cheap: a little above a small size, well below a large one."""
    if heavy:
        return [p for p in range(max(3, size + 1), 2 * size + 4) if _is_prime(p)][:3]
    low, high = (5, 24) if size <= 16 else (max(3, size // 2), size)
    taken = {size, size + 1, *avoid}
    return [p for p in range(low, high) if p not in taken and _is_prime(p)][:3]


def shown_role(role: str, size: int) -> str:
    """What to call a case: where PyTorch refused every prime, another size took its place."""
    return "other" if role == "prime" and not _is_prime(size) else role


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % d for d in range(2, int(number**0.5) + 1))


def pair_sizes(found: Mapping[str, Mapping[str, int]]) -> Iterator[dict[str, int]]:
    """Two dimensions away from the example at once: one at its neighbor, the other at its prime.

    Args:
        found: for each dimension the sizes PyTorch accepted, by role.
    """
    for left, right in list(combinations(found, 2))[:_MOST_PAIRS]:
        a = found[left].get("neighbor") or found[left].get("prime")
        b = found[right].get("prime") or found[right].get("neighbor")
        if a is not None and b is not None:
            yield {left: a, right: b}


def sample(given: ProofInput, question: Question) -> Array:
    """The input's array for a question. Deterministic: the same question gives the same array."""
    shape = given.shape(question.sizes)
    example = given.example
    if question.values == "example" and shape == example.shape:
        return example
    # Each input its own stream, the same in every process.
    rng = np.random.default_rng([question.seed, zlib.crc32(given.name.encode())])
    if question.values == "padded" and _is_mask(given):
        return _padded(example, shape)
    if given.counts in question.sizes:
        return _sample_lengths(example, shape, rng, question.sizes[given.counts])
    if example.dtype.kind in "biu":
        if question.values == "kept" and shape == example.shape:
            return example
        return _sample_integers(example, shape, rng, question)
    return _sample_floats(example, shape, rng, question.values)


def _sample_integers(example: Array, shape: tuple[int, ...], rng: np.random.Generator, question: Question) -> Array:
    if example.size == 0:
        return np.zeros(shape, example.dtype)
    if example.dtype.kind == "b":
        return _with_a_key(example, rng.integers(0, 2, shape).astype(bool))
    if question.values in _STEPS:  # beyond the example's range: only to send a branch the other way
        near = np.resize(example, shape).astype(np.int64) + _STEPS[question.values]
        return np.maximum(near, 0).astype(example.dtype)
    if question.values == "in turn" and example.min() >= 0:
        last = max(int(example.max()), question.seed - _TURN)
        return np.resize(np.roll(np.arange(last + 1), _TURN - question.seed), shape).astype(example.dtype)
    numbers = rng.integers(example.min(), example.max(), shape, dtype=example.dtype, endpoint=True)
    return np.sort(numbers, axis=-1) if _is_boxes(example) else numbers


def _is_boxes(example: Array) -> bool:
    """Corners of boxes, or begins and ends: the last numbers of each row are no smaller than the first."""
    return example.ndim >= 2 and example.shape[-1] in (2, 4) and bool((np.diff(example, axis=-1) >= 0).all())


def _sample_lengths(example: Array, shape: tuple[int, ...], rng: np.random.Generator, steps: int) -> Array:
    """One row as long as the sequence, as in most batches; the longest first where the example has it so."""
    lengths = rng.integers(min(int(example.min()), 1), steps, shape, dtype=example.dtype, endpoint=True)
    if lengths.size:
        lengths[rng.integers(lengths.size)] = steps
    return -np.sort(-lengths) if (example[:-1] >= example[1:]).all() else lengths


def _with_a_key(example: Array, mask: Array) -> Array:
    """A mask that leaves each row its first place: what attention makes of a row without any is no one's contract."""
    if mask.ndim >= 2 and mask.shape[-1]:
        mask[..., 0] = example.mean() >= 0.5
    return mask


def _sample_floats(example: Array, shape: tuple[int, ...], rng: np.random.Generator, values: Values) -> Array:
    if values == "flipped" and shape == example.shape:
        return np.negative(example)
    if values in ("zeros", "ones"):
        return np.full(shape, 0 if values == "zeros" else 1, example.dtype)
    numbers = _like(example, shape, rng)
    if values in _SCALES:
        with np.errstate(over="ignore"):
            numbers = numbers * _SCALES[values]
    elif values == "flipped":
        numbers = -numbers
    with np.errstate(over="ignore"):
        return numbers.astype(example.dtype)


def _like(example: Array, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Numbers of the example's kind: drawn from its few values, or from a normal of its mean and spread."""
    if example.dtype.kind == "c":
        return rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
    wide = example.astype(np.float64).reshape(-1)[: 1 << 20]
    different = np.unique(wide)
    if 1 < different.size <= _FEW < example.size:
        return rng.choice(different, shape)
    finite = wide[np.isfinite(wide)]
    mean, spread = (float(finite.mean()), float(finite.std())) if finite.size > 1 else (0.0, 1.0)
    return rng.normal(mean, spread or 1.0, shape)


_NUDGES = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float64": 1e-10, "complex128": 1e-10}


def nudge_of(dtype: str, precision: str | None = None) -> float:
    """How far numbers of a dtype are moved: a part in a million; by the last bit of a dtype that is coarser; and in
    float64, which is held to more digits, less. `precision` is the coarsest dtype the model computes in."""
    return max(_NUDGES.get(dtype, 1e-6), 0.0 if precision is None else _NUDGES.get(precision, 1e-6))


def nudged(array: Array, seed: int = 0, precision: str | None = None) -> Array:
    """The same numbers, each moved up or down by `nudge_of` its dtype (of the largest, where a number is zero).

    Up or down by chance, because moving all the same way would not part the ties of an argmax.
    """
    if array.dtype.kind in "biu":
        return array
    step = nudge_of(array.dtype.name, precision)
    wide = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], wide.shape)
    size = np.abs(wide)
    largest = float(size.max(initial=0.0, where=np.isfinite(size))) or 1.0
    with np.errstate(over="ignore", invalid="ignore"):
        return (wide + step * signs * np.where(size == 0, largest, wide)).astype(array.dtype)
