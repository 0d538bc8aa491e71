"""Tolerances by dtype, the magnitude that an absolute tolerance is scaled by, and limits for two models."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from torchport.errors import OptionError
from torchport.results import Finding
from torchport.tensors import FLOATS, Array

# How far apart two answers may be, by dtype.
#
# The limit for one number is ``rtol * |reference| + atol * scale``, where the scale is the reference output's largest
# magnitude: an output of millionths is held to millionths, one of thousands to thousands. See `scale` for masks.


@dataclasses.dataclass(frozen=True)
class Tolerance:
    rtol: float
    atol: float


DEFAULTS = {
    "float64": Tolerance(1e-7, 1e-9),
    "float32": Tolerance(1e-3, 1e-5),
    "float16": Tolerance(1e-2, 1e-3),
    "bfloat16": Tolerance(2e-2, 1e-2),
}
EXACT = Tolerance(0.0, 0.0)

# A reference that is all zeros (a difference that cancels) has no magnitude to scale by: rounding noise of this part
# of `atol` is let through, which is 1e-8 for float32.
FLOOR = 1e-3


def tolerance(dtype: str, precision: str | None = None) -> Tolerance:
    """The tolerance for an output of `dtype`.

    Args:
        dtype: the output's dtype; integers and booleans are exact.
        precision: the coarsest float dtype the model computes in. A float32 output of a float16 model is only as
            good as float16.
    """
    real = {"complex64": "float32", "complex128": "float64"}.get(dtype, dtype)
    if real.startswith("float8"):
        real = "bfloat16"
    if real not in FLOATS:
        return EXACT
    own = DEFAULTS[real]
    floor = DEFAULTS.get(precision or real, own)
    return Tolerance(max(own.rtol, floor.rtol), max(own.atol, floor.atol))


@dataclasses.dataclass(frozen=True)
class Requested:
    """Tolerances that a caller set, by output name; ``""`` stands for every output without an entry of its own."""

    rtol: Mapping[str, float] = dataclasses.field(default_factory=dict)
    atol: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @classmethod
    def read(cls, rtol: object, atol: object) -> Requested:
        """Read a number for all outputs, or a mapping from output names.

        Raises:
            OptionError: a tolerance is no number, negative or not finite.
        """
        return cls(_by_output("rtol", rtol), _by_output("atol", atol))

    @property
    def names(self) -> set[str]:
        """The outputs that are named."""
        return {*self.rtol, *self.atol} - {""}

    def limit(self, name: str, own: Tolerance) -> Tolerance:
        """Return the tolerance of an output, `own` where none was set. Integers and booleans stay exact."""
        if own == EXACT:
            return own
        rtol = self.rtol.get(name, self.rtol.get("", own.rtol))
        return Tolerance(rtol, self.atol.get(name, self.atol.get("", own.atol)))

    def shown(self, names: Iterable[str]) -> dict[str, dict[str, float]]:
        """Return what was set for each of these outputs, for the record of a proof."""
        found: dict[str, dict[str, float]] = {}
        for name in names:
            for kind, given in (("rtol", self.rtol), ("atol", self.atol)):
                if name in given or "" in given:
                    found.setdefault(name, {})[kind] = given[name] if name in given else given[""]
        return found


def _by_output(kind: str, given: object) -> dict[str, float]:
    entries: dict[Any, Any] = dict(given) if isinstance(given, Mapping) else {} if given is None else {"": given}
    for name, number in entries.items():
        right = isinstance(number, (int, float)) and not isinstance(number, bool)
        if not right or not math.isfinite(number) or number < 0:
            place = f" of output '{name}'" if name else ""
            raise OptionError(f"{kind}{place} is {number!r}", next_step=f"give a number of at least zero: {kind}=1e-3")
    return {str(name): float(number) for name, number in entries.items()}


# The magnitude that an absolute tolerance is taken of.

LARGE = 1e4  # from here on a number may stand for "nothing": -1e9 where something is masked
_CHUNK = 1 << 20  # numbers looked at together, so that memory stays small beside the arrays
_FAR = 16  # masks with a score added to them are still near each other
_LIMITS = {*(float(np.finfo(t).max) for t in (np.float16, np.float32, np.float64)), 3.3895313892515355e38}


def floor(reference: Array, candidate: Array, limit: Tolerance) -> float:
    """The absolute tolerance for two tensors of one shape."""
    return limit.atol * max(scale(reference, candidate, limit), FLOOR)


def scale(reference: Array, candidate: Array, limit: Tolerance) -> float:
    """The largest finite magnitude in the reference, without what stands for "nothing".

    Beside -1e9, or the least number of a dtype, every other number is small, and so would every error be. Such numbers
    are left out if somebody wrote them, and both sides have them in the same places.
    """
    if reference.dtype.kind in "biu":
        return largest(reference)
    found = largest(reference)
    if found < LARGE:
        return found
    rest = largest(reference, below=found / _FAR)
    if limit.atol * found < rest:
        return found  # errors of the rest are seen beside it
    masks = _same_beyond(reference, candidate, found / _FAR)
    return rest if masks is not None and any(map(_is_written, masks)) else found


def largest(array: Array, below: float = math.inf) -> float:
    """The largest finite magnitude, of those below some."""
    found = 0.0
    for part in chunks(array):
        numbers = np.abs(part if part.dtype in (np.float32, np.float64) else part.astype(np.float64))
        most = float(numbers.max(initial=0.0))
        if not (math.isfinite(most) and most <= below):
            most = float(numbers.max(initial=0.0, where=np.isfinite(numbers) & (numbers <= below)))
        found = max(found, most)
    return found


def _same_beyond(reference: Array, candidate: Array, limit: float) -> set[Any] | None:
    """The finite numbers with a larger magnitude, if the candidate has the very same; None if it has not."""
    found: set[Any] = set()
    for ours, theirs in zip(chunks(reference), chunks(candidate), strict=True):
        numbers = np.abs(ours.astype(np.float64))
        far = np.isfinite(numbers) & (numbers > limit)
        if not np.array_equal(ours[far], theirs[far]):
            return None
        found.update(np.unique(ours[far]))
    return found


def _is_written(number: Any) -> bool:
    """Whether it is one that people write: of two digits, or the largest of its dtype."""
    with np.errstate(over="ignore"):
        short = type(number)(float(f"{float(number):.2g}"))
    return bool(short == number) or abs(float(number)) in _LIMITS


def flat_parts(array: Array) -> Array:
    """One row of real numbers: complex ones as real and imaginary part in turn, narrow integers as int8."""
    flat = np.asarray(array, order="C").reshape(-1)
    if flat.dtype.kind == "c":
        return flat.view(flat.real.dtype)
    name = flat.dtype.name
    if flat.dtype.kind == "V" and name.startswith(("int", "uint")):  # int4 and the like, lent by ml_dtypes
        return flat.astype(np.uint8 if name.startswith("u") else np.int8)
    return flat


def chunks(array: Array) -> list[Array]:
    """The numbers in pieces of a row."""
    row = flat_parts(array)
    return [row[i : i + _CHUNK] for i in range(0, row.size, _CHUNK)]


# How far apart the tensors of two models may be.

_QUANTIZED = Tolerance(0.1, 0.05)
_HALVES = ("bfloat16", "float16")
_QUANTIZING = {"QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul", "DequantizeLinear"}


@dataclasses.dataclass(frozen=True)
class Limits:
    """The tolerance of a pair of tensors: what was asked for, else that of the coarser dtype."""

    asked: Tolerance | None = None
    quantized: bool = False
    inside: str = ""  # the coarsest floats a model computes in, whatever its outputs are

    def __call__(self, reference: str, candidate: str = "") -> Tolerance:
        known = [name for name in (candidate, self.inside) if name in DEFAULTS]
        own = tolerance(reference, max(known, key=lambda name: DEFAULTS[name].rtol, default=None))
        if own.rtol == 0:
            return own  # whole numbers are exact
        if self.asked is not None:
            return self.asked
        return _QUANTIZED if self.quantized else own

    @property
    def findings(self) -> list[Finding]:
        """What is let through beyond what a dtype allows, unless it was asked for."""
        if self.asked is not None:
            return []
        told = [f"a quantized model: {_QUANTIZED.atol:.0%} of the largest number is let through"] * self.quantized
        if self.inside:
            told.append(f"a model that computes in {self.inside}: it is held to that")
        return list(map(Finding, told))


def limits_for(models: Iterable[ir.Model], asked: Tolerance | None) -> Limits:
    """The tolerances for what these models compute in."""
    known = list(models)
    quantized = any(n.op_type in _QUANTIZING for model in known for n in model.graph)
    inside = next((half for half in _HALVES for model in known if _computes_in(half, model)), "")
    return Limits(asked, quantized, inside)


def _computes_in(dtype: str, model: ir.Model) -> bool:
    """Whether a node of the main graph gives floats of this width."""
    wanted = ir.DataType[dtype.upper()]
    return any(v.dtype == wanted for node in model.graph for v in node.outputs) or any(
        v.dtype == wanted for v in model.graph.initializers.values()
    )
