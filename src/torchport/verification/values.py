"""Arrays for a case: other sizes and other values, within the domain that the example shows.

A model may validate its inputs: probabilities, boxes, ids, labels of which one is ignored, positive definite matrices.
It refuses numbers from outside that domain, and a refused case is no evidence. So an array is drawn within the range of
the example; where the model refuses that too, with the structure of the example; and last from the example's own
values, repeated, cropped or resampled to the size.
"""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np

from torchport.irtools.dims import evaluated
from torchport.results import Dim
from torchport.tensors import Array

Drawn = Literal["random", "structured", "kept", "resampled", "in turn", "padded", "zeros", "ones"]
Changed = Literal["example", "flipped", "larger", "huge", "tiny", "scaled", "rolled", "near"]
Values = Drawn | Changed

_FEW = 4  # an example with at most so many different values is a mask or a flag, not a measurement
_STEPS = {"huge": 1, "tiny": -1, "ones": -2}  # how far integers are moved where floats are scaled
_SCALES = {"larger": 10.0, "huge": 1e4, "tiny": 1e-4}
TURN = 3  # the seed of numbers in turn from 0 on; the next are from 1 on, and so forth
_LARGEST_MATRIX = 256  # rows of a matrix whose definiteness is checked
_SMALL_ROW = 64  # numbers of a row, a matrix say, that may each have a meaning of its own
_ALIKE = 0.1  # of the spread of all numbers: rows that differ by less are alike
_NEAR_IDENTITY = 0.2
_GAP = 10  # between labels and the one that is ignored


@dataclasses.dataclass(frozen=True)
class ProofInput:
    """One input of the model: the example array, and the axes that may vary.

    Attributes:
        counts: the dimension whose steps the values count, for an input of lengths; see `with_relations`.
        below: dimensions whose size is larger than every value: the values may be indices along them.
        expressions: axes whose size follows from several dimensions, such as ``past + sequence``.
    """

    name: str
    example: Array
    dims: Mapping[int, Dim] = dataclasses.field(default_factory=dict)
    counts: str = ""
    below: tuple[str, ...] = ()
    expressions: Mapping[int, str] = dataclasses.field(default_factory=dict)

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Return the input's shape when the roots have `sizes`; other axes stay as in the example."""
        shape = list(self.example.shape)
        for axis, dim in self.dims.items():
            if dim.root in sizes:
                shape[axis] = dim.size(sizes[dim.root])
        for axis, text in self.expressions.items():
            size = evaluated(text, sizes)
            shape[axis] = size if isinstance(size, int) and size >= 0 else shape[axis]
        return tuple(shape)

    @functools.cached_property
    def structure(self) -> Draw | None:
        """The function that draws numbers with the example's structure; None if it shows none."""
        return _structure(self.example)

    @property
    def is_number(self) -> bool:
        """One whole number, of which a random draw shows nothing new: its range is the example's value."""
        example = self.example
        return example.dtype.kind in "iu" and example.size == 1 and not self.dims and example.min() >= 0

    @property
    def is_mask(self) -> bool:
        """Two or more axes of zeros and ones. All ones may be counts or types, unless the name says mask."""
        example = self.example
        if example.ndim < 2 or example.dtype.kind not in "biu" or not np.isin(example, (0, 1)).all():
            return False
        return example.dtype.kind == "b" or np.unique(example).size == 2 or "mask" in self.name.lower()


@dataclasses.dataclass(frozen=True)
class CaseSpec:
    """One case to try: its sizes and its kind of values. The inputs `kept` have the example's own values."""

    label: str
    values: Values
    seed: int
    sizes: Mapping[str, int]
    kept: tuple[str, ...] = ()


def example_sizes(inputs: Sequence[ProofInput]) -> dict[str, int]:
    """Return the size of each root dimension in the example."""
    sizes: dict[str, int] = {}
    for i in inputs:
        for axis, dim in i.dims.items():
            root = dim.root_size(i.example.shape[axis])
            if root is not None:
                sizes.setdefault(dim.root, root)
    return sizes


def with_relations(inputs: Sequence[ProofInput]) -> tuple[ProofInput, ...]:
    """Return the inputs, with lengths and indices among them recognized.

    Lengths are one integer a row, named so, none above some dimension's size: at another size no row may be longer than
    the sequence. Indices are integers below a dimension's size, as the nodes of a graph's edges are.
    """
    sizes = example_sizes(inputs)
    return tuple(dataclasses.replace(i, counts=_counted(i, sizes), below=_below(i, sizes)) for i in inputs)


def _counted(given: ProofInput, sizes: Mapping[str, int]) -> str:
    example = given.example
    if "len" not in given.name.lower() or example.ndim != 1 or example.dtype.kind not in "iu" or not example.size:
        return ""
    own = {d.root for d in given.dims.values()}
    fitting = [(size, root) for root, size in sizes.items() if root not in own and size >= example.max()]
    return min(fitting)[1] if fitting and example.min() >= 0 else ""


def _below(given: ProofInput, sizes: Mapping[str, int]) -> tuple[str, ...]:
    example = given.example
    if example.dtype.kind not in "iu" or not example.size or example.min() < 0:
        return ()
    return tuple(root for root, size in sizes.items() if size > example.max())


def ladder(inputs: Sequence[ProofInput]) -> tuple[Values, ...]:
    """Return the kinds of values to try at another size, until PyTorch accepts one; the most different first."""
    has_integers = any(i.example.dtype.kind in "iu" for i in inputs)
    structured = any(i.structure is not None for i in inputs)
    kinds: list[tuple[Values, bool]] = [
        *(("random", True), ("structured", structured), ("kept", has_integers), ("resampled", True))
    ]
    return tuple(kind for kind, needed in kinds if needed)


def sample(given: ProofInput, spec: CaseSpec) -> Array:
    """Return the input's array for a case. Deterministic: the same case gives the same array."""
    shape, example = given.shape(spec.sizes), given.example
    if (spec.values == "example" or given.name in spec.kept) and shape == example.shape:
        return example
    # Each input its own stream, the same in every process.
    rng = np.random.default_rng([spec.seed, zlib.crc32(given.name.encode())])
    if spec.values == "padded" and given.is_mask:
        return _padded(example, shape)
    if given.counts in spec.sizes:
        steps = spec.sizes[given.counts]
        own = spec.values in ("kept", "resampled")  # they may be tied to another input: their sum is its size, say
        return np.minimum(resampled(example, shape), steps) if own else _sample_lengths(example, shape, rng, steps)
    if spec.values == "structured" and given.structure is not None:
        return given.structure(shape, rng).astype(example.dtype)
    if example.dtype.kind in "biu":
        return _sample_integers(given, shape, rng, spec)
    if spec.values in ("resampled", "scaled", "rolled", "near"):
        return _varied(resampled(example, shape), spec.values, rng)
    return _sample_floats(example, shape, rng, spec.values)


def resampled(example: Array, shape: tuple[int, ...]) -> Array:
    """Return the example's own numbers in another shape.

    Along an axis in which the numbers are in order, places are spread evenly, so that the order is kept; along others
    rows are repeated or left out.
    """
    for axis, size in enumerate(shape):
        count = example.shape[axis]
        if size == count:
            continue
        if not count:
            return np.zeros(shape, example.dtype)
        ordered = size and count > 2 and _in_order(example, axis)
        places = np.linspace(0, count - 1, size).round().astype(int) if ordered else np.arange(size) % count
        example = example.take(places, axis=axis)
    return example


def _in_order(array: Array, axis: int) -> bool:
    if array.dtype.kind in "bc":
        return False
    with np.errstate(invalid="ignore"):
        steps = np.diff(array.astype(np.float64) if array.dtype.kind != "f" else array, axis=axis)
    return bool((steps >= 0).all() or (steps <= 0).all()) and bool((steps != 0).any())


def _varied(array: Array, values: Values, rng: np.random.Generator) -> Array:
    """Return numbers close to an array's own, for a model that refuses all drawn ones."""
    if values == "scaled":
        return (array * np.asarray(0.9, array.real.dtype)).astype(array.dtype)
    if values == "rolled":
        return np.roll(array, 1, axis=-1) if array.ndim else array
    if values == "near":
        numbers = array * (1 + 0.01 * rng.uniform(-1, 1, array.shape))
        finite = array.dtype.kind == "f" and array.size and bool(np.isfinite(array).all())
        return (np.clip(numbers, array.min(), array.max()) if finite else numbers).astype(array.dtype)
    return array


def _padded(example: Array, shape: tuple[int, ...]) -> Array:
    """Each row keeps fewer than the one before it, the first all; zeros mark padding unless the example is mostly
    zeros (PyTorch's `key_padding_mask` marks it with True)."""
    length = shape[-1]
    rows = int(np.prod(shape[:-1]))
    kept = np.maximum(length - np.arange(rows) % max(length, 1), 1)
    real = np.arange(length) < kept[:, None]
    marks_padding = example.dtype.kind == "b" and example.mean() < 0.5 if example.size else False
    return (~real if marks_padding else real).reshape(shape).astype(example.dtype)


# Integers and booleans


def _sample_integers(given: ProofInput, shape: tuple[int, ...], rng: np.random.Generator, spec: CaseSpec) -> Array:
    example = given.example
    if example.size == 0:
        return np.zeros(shape, example.dtype)
    if example.dtype.kind == "b":
        kept = spec.values == "resampled"
        return resampled(example, shape) if kept else _with_a_key(example, rng.integers(0, 2, shape).astype(bool))
    top = min([int(example.max()), *(max(spec.sizes[root] - 1, 0) for root in given.below if root in spec.sizes)])
    if spec.values in ("kept", "resampled", "scaled", "near", "rolled"):
        numbers = _varied(resampled(example, shape), "rolled" if spec.values == "rolled" else "resampled", rng)
        return np.where(numbers > top, numbers.astype(np.int64) % (top + 1), numbers).astype(example.dtype)
    if spec.values in _STEPS:  # beyond the example's range: only to send a branch the other way
        near = np.resize(example, shape).astype(np.int64) + _STEPS[spec.values]
        return np.maximum(near, 0).astype(example.dtype)
    if spec.values == "in turn" and example.min() >= 0:
        first = spec.seed - TURN
        return ((first + np.arange(int(np.prod(shape)))) % (max(top, first) + 1)).reshape(shape).astype(example.dtype)
    numbers = _drawn_integers(example, top, shape, rng)
    return np.sort(numbers, axis=-1) if _is_boxes(example) else numbers


def _drawn_integers(example: Array, top: int, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Numbers of the example's range; a number far below the others, -100 beside labels, now and then."""
    low = int(example.min())
    known = np.unique(example)
    if low < 0 and known.size > 1 and int(known[1]) - low >= _GAP and int(known[1]) >= 0:
        numbers = rng.integers(int(known[1]), top, shape, dtype=example.dtype, endpoint=True)
        return np.where(rng.random(shape) < (example == low).mean(), example.dtype.type(low), numbers)
    return rng.integers(min(low, top), top, shape, dtype=example.dtype, endpoint=True)


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
    """A mask that leaves each row its first place: attention over no key at all is defined by nobody."""
    if mask.ndim >= 2 and mask.shape[-1]:
        mask[..., 0] = example.mean() >= 0.5
    return mask


# Floats


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
    """Numbers of the example's kind: of its few values, whole or within its bounds, or from a normal of its spread."""
    if example.dtype.kind == "c":
        return rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
    if (places := _places(example, shape)) is not None:
        return rng.normal(*places, shape)
    wide = example.astype(np.float64).reshape(-1)[: 1 << 20]
    different = np.unique(wide)
    if 1 < different.size <= _FEW < example.size:
        return rng.choice(different, shape)
    finite = wide[np.isfinite(wide)]
    mean, spread = (float(finite.mean()), float(finite.std())) if finite.size > 1 else (0.0, 1.0)
    if different.size <= _FEW or not finite.size:
        return rng.normal(mean, spread or 1.0, shape)
    low, high = float(finite.min()), float(finite.max())
    if (finite == np.round(finite)).all() and high - low > _FEW:
        return rng.integers(int(low), int(high), shape, endpoint=True).astype(np.float64)
    if low >= -1 and high <= 1 and (low >= 0 or high - low > 1):  # probabilities, pixels, coordinates
        return rng.uniform(low, high, shape)
    numbers = rng.normal(mean, spread, shape)
    return np.maximum(np.abs(numbers), low) if low > 0 else numbers


def _places(example: Array, shape: tuple[int, ...]) -> tuple[Array, Array] | None:
    """The mean and spread of each number of a row, where rows are so much alike that it matters: matrices near the
    identity, homographies, cameras. Numbers that are like all of them taken together make no such matrix."""
    row = example.shape[1:]
    if (
        example.ndim < 2
        or not example.size
        or not 2 <= np.prod(row) <= _SMALL_ROW
        or shape[1:] != row
        or not np.isfinite(example).all()
    ):
        return None
    rows = example.astype(np.float64)
    if example.ndim > 2 and row[-1] == row[-2] and np.abs(rows - np.eye(row[-1])).max() <= _NEAR_IDENTITY:
        return np.broadcast_to(np.eye(row[-1]), row), np.full(row, max(float((rows - np.eye(row[-1])).std()), 0.01))
    spread = rows.std(0)
    if len(rows) > 1 and 0 < spread.max() < _ALIKE * rows.std():
        return rows.mean(0), spread
    return None


# The structure of an example

Draw = Callable[[tuple[int, ...], np.random.Generator], Array]


def _structure(example: Array) -> Draw | None:
    """Return the function that draws arrays of the example's structure; None if it shows none that is known."""
    if not example.size or example.dtype.kind not in "fiu" or not np.isfinite(example.astype(np.float64)).all():
        return None
    for rule in (_distribution, _definite, _boxes, _unit_rows, _ordered):
        draw = rule(example.astype(np.float64))
        if draw is not None:
            return draw
    return None


def _distribution(example: Array) -> Draw | None:
    """Numbers of at least zero that add up to one along an axis; one-hot rows stay one-hot."""
    if (example < 0).any():
        return None
    axes = [a for a in range(example.ndim) if example.shape[a] > 1]
    axis = next((a for a in reversed(axes) if np.allclose(example.sum(a), 1, atol=1e-3)), None)
    if axis is None:
        return None
    one_hot = bool(np.isin(example, (0, 1)).all())

    def draw(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
        numbers = rng.exponential(size=shape)
        if one_hot:
            return (numbers == numbers.max(axis, keepdims=True)).astype(np.float64)
        return numbers / numbers.sum(axis, keepdims=True)

    return draw


def _definite(example: Array) -> Draw | None:
    """Symmetric matrices with positive eigenvalues."""
    if example.ndim < 2 or example.shape[-1] != example.shape[-2] or not 1 < example.shape[-1] <= _LARGEST_MATRIX:
        return None
    if not np.allclose(example, example.swapaxes(-1, -2)) or np.linalg.eigvalsh(example).min() <= 0:
        return None
    size = float(np.abs(example).max())

    def draw(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
        factor = rng.standard_normal(shape)
        if shape[-1] != shape[-2]:
            return size * factor
        return size * (factor @ factor.swapaxes(-1, -2) / shape[-1] + 0.5 * np.eye(shape[-1]))

    return draw


def _boxes(example: Array) -> Draw | None:
    """Rows of two corners, the second beyond the first: x1, y1, x2, y2."""
    if example.ndim < 2 or example.shape[-1] != 4 or example.size < 8:
        return None
    if (example[..., 2:] < example[..., :2]).any():
        return None
    low, high = float(example.min()), float(example.max())

    def draw(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
        if shape[-1] != 4:
            return rng.uniform(low, high, shape)
        corners = rng.uniform(low, high, (*shape[:-1], 2, 2))
        return np.sort(corners, axis=-2).reshape(shape)

    return draw


def _unit_rows(example: Array) -> Draw | None:
    """Vectors of length one: directions, quaternions, embeddings."""
    if not example.ndim or example.shape[-1] < 2 or not np.allclose((example**2).sum(-1), 1, atol=1e-3):
        return None

    def draw(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
        numbers = rng.standard_normal(shape)
        return numbers / np.maximum(np.linalg.norm(numbers, axis=-1, keepdims=True), 1e-6)

    return draw


def _ordered(example: Array) -> Draw | None:
    """Numbers in order along the last axis that has more than two: times, edges of intervals."""
    axes = [a for a in range(example.ndim) if example.shape[a] > 2]
    axis = next((a for a in reversed(axes) if _in_order(example, a)), None)
    if axis is None:
        return None
    low, high = float(example.min()), float(example.max())
    falls = bool((np.diff(example, axis=axis) <= 0).all())

    def draw(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
        numbers = np.sort(rng.uniform(low, high, shape), axis=axis)
        return np.flip(numbers, axis) if falls else numbers

    return draw


# The same numbers, moved a little

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
