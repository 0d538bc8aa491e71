"""Which cases to try on both models: sizes never seen, values beyond the example's, within a budget."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from torchport.results import Dim
from torchport.tensors import Array
from torchport.verification.values import TURN, CaseSpec, ProofInput, Values

_MOST_PAIRS = 10
_HEAVY = 1 << 18  # bytes of example inputs
_COSTLY = 1.0  # seconds of one run, from which on a dimension is tried at two other sizes only
_VERY_COSTLY = 5.0  # and from which on at one
_SECONDS = 5.0  # that one case may take
_BYTES = 1 << 30  # that one case may take
_GROWTH = 1.5  # the power of its input's size that a model's time and memory grow with, between linear and quadratic
_FREE = 4.0  # times the example's numbers that are always tried


@dataclasses.dataclass(frozen=True)
class Budget:
    """What one case may cost, estimated from the example.

    Attributes:
        seconds: the time of one run on the example.
        numbers: how many numbers the example's inputs have.
        bytes: the size of the example's inputs and outputs.
    """

    seconds: float
    numbers: int
    bytes: int

    @classmethod
    def of(cls, inputs: Sequence[ProofInput], outputs: Sequence[Array], seconds: float) -> Budget:
        arrays = [i.example for i in inputs]
        return cls(seconds, sum(a.size for a in arrays), sum(a.nbytes for a in (*arrays, *outputs)))

    @property
    def costly(self) -> bool:
        """One run takes so long that few cases must do."""
        return self.seconds > _COSTLY

    @property
    def most_sizes(self) -> int:
        """Return at how many other sizes a dimension is tried."""
        return 1 if self.seconds > _VERY_COSTLY else 2 if self.costly else 9

    def allows(self, numbers: int) -> bool:
        """Check that a run on inputs of so many numbers is affordable."""
        growth = (numbers / max(self.numbers, 1)) ** _GROWTH
        if growth <= _FREE**_GROWTH:
            return True
        return self.seconds * growth <= max(_SECONDS, 2 * self.seconds) and self.bytes * growth <= _BYTES


def roots(inputs: Sequence[ProofInput]) -> dict[str, Dim]:
    """Each independent dimension by name, with the tightest of the bounds given for it."""
    found: dict[str, Dim] = {}
    for dim in (d for i in inputs for d in i.dims.values()):
        known = found.get(dim.root, Dim(dim.root, min=dim.min, max=dim.max))
        tops = [m for m in (known.max, dim.max) if m is not None]
        found[dim.root] = Dim(dim.root, min=max(known.min, dim.min), max=min(tops) if tops else None)
    return found


def is_heavy(inputs: Sequence[ProofInput]) -> bool:
    """Check that one more row of the example costs enough to be careful with."""
    return sum(i.example.nbytes for i in inputs) > _HEAVY


def is_batch(root: str, inputs: Sequence[ProofInput]) -> bool:
    """Check that a dimension is only ever the first axis: rows of a batch, of which one is as good as many."""
    return all(axis == 0 for i in inputs for axis, dim in i.dims.items() if dim.root == root)


def value_cases(inputs: Sequence[ProofInput], sizes: Mapping[str, int]) -> list[CaseSpec]:
    """Other values, at the sizes given."""
    has_floats = any(i.example.dtype.kind not in "biu" for i in inputs)
    kinds: list[tuple[str, Values, int]] = [("random", "random", 1)]
    if has_floats:
        kinds += [("sign flipped", "flipped", 0), ("zeros", "zeros", 0), ("larger", "larger", 2)]
    else:
        kinds += [("random again", "random", 2)]
    if any(i.example.dtype.kind in "iu" and i.example.size and i.example.min() >= 0 for i in inputs):
        kinds += [("numbers in turn", "in turn", TURN)]  # 0 among them, which is often padding and seldom drawn
        if any(i.is_number for i in inputs):
            kinds += [(f"number {n}", "in turn", TURN + n) for n in (1, 2)]  # a size, perhaps: 1 is a case of its own
    return [CaseSpec(label, values, seed, dict(sizes)) for label, values, seed in kinds]


def valid_value_cases(inputs: Sequence[ProofInput], sizes: Mapping[str, int]) -> list[CaseSpec]:
    """Further values for a model that refuses most drawn ones, each nearer to the example than the one before."""
    kinds: list[Values] = ["rolled", "near", "scaled"]
    if any(i.structure is not None for i in inputs):
        kinds.insert(0, "structured")
    return [CaseSpec(kind, kind, 6, dict(sizes)) for kind in kinds]


def padding_cases(inputs: Sequence[ProofInput], sizes: Mapping[str, int]) -> list[CaseSpec]:
    """Masks as users have them, ones and then zeros in each row: chance hardly ever draws such a one."""
    return [CaseSpec("padded", "padded", 4, dict(sizes))] if any(i.is_mask for i in inputs) else []


def branch_cases(sizes: Mapping[str, int], rounds: int) -> list[CaseSpec]:
    """More values, to send a branch that the capture may have frozen the other way."""
    kinds: list[Values] = ["huge", "tiny", "ones"]
    found = [CaseSpec(f"branch {kind}", kind, 10, dict(sizes)) for kind in kinds]
    return found + [CaseSpec(f"branch random {n + 1}", "random", 20 + n, dict(sizes)) for n in range(rounds)]


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
    """The name of a case: where PyTorch refused every prime, another size took its place."""
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
