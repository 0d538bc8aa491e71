"""What two stored tensors hold, compared piece by piece: a mapped tensor never fills the memory."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Hashable, Iterator
from typing import Any

import numpy as np
import onnx_ir as ir

from torchport.errors import FileError
from torchport.irtools.names import own_tensor
from torchport.numerics.streaming import Errors
from torchport.numerics.tolerance import EXACT, largest
from torchport.tensors import Array

_PIECE = 1 << 20  # numbers looked at together
_FEW = 64  # numbers that are looked at to tell one weight from others
_TINY = 8  # numbers of an axis, a shape
_TELLING = 4  # different ones among them; else it is one of many: ones, zeros
_WIDE = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
_COMPLEX = (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128)


@dataclasses.dataclass(frozen=True)
class Apart:
    """How far the numbers of two tensors of one shape are from each other.

    Attributes:
        differ: how many of the `count` numbers are not the same; NaN is the same as NaN, a complex number counts twice.
        max_abs: the largest difference, infinite where only one of two numbers is finite.
        mean_abs: over all numbers that are finite in both.
        relative: the largest difference beside the largest number of the first tensor.
        cosine: of the angle between the two, 1 if only their length differs.
    """

    count: int
    differ: int
    max_abs: float
    mean_abs: float
    relative: float
    cosine: float


def same_content(a: ir.TensorProtocol, b: ir.TensorProtocol) -> bool:
    """Whether two tensors are of one type and hold the same bytes; reads until the first difference, if at all.

    Example:
        >>> same_content(model.graph.initializers["w"].const_value, other.graph.initializers["w"].const_value)
        True
    """
    if a is b or same_place(a, b):
        return True
    if a.dtype != b.dtype or tuple(a.shape) != tuple(b.shape):
        return False
    return all(_bytes_of(x) == _bytes_of(y) for x, y in _pieces(_numbers(a), _numbers(b)))


def fingerprint(tensor: ir.TensorProtocol) -> Hashable:
    """A few numbers spread over a tensor, which trained weights share with nothing but themselves.

    Floats of any width are told as float16, so that a weight is known in a model that was converted to it. None where
    they tell nothing: too few different ones, texts, or numbers that cannot be read.
    """
    if tensor.dtype == ir.DataType.STRING or tensor.size < _TELLING:
        return None
    try:
        numbers = _numbers(tensor)
    except FileError:
        return None  # whoever needs the numbers will say so
    few = numbers[:: -(-numbers.size // _FEW)]
    if tensor.dtype in _WIDE:
        with np.errstate(over="ignore"):
            few = few.astype(np.float16)
    if len(set(few.tolist())) < _TELLING:
        return None
    return few.dtype.name, tuple(tensor.shape), few.tobytes()


def tiny(tensor: ir.TensorProtocol) -> Hashable:
    """All numbers of a tensor of a few, such as axes and shapes; None if it is larger, or they cannot be read."""
    if tensor.dtype == ir.DataType.STRING or tensor.size > _TINY:
        return None
    try:
        return _numbers(tensor).tobytes()
    except FileError:
        return None


def _bytes_of(piece: Array) -> bytes | list[Any]:
    return piece.tolist() if piece.dtype.kind in "OSU" else piece.tobytes()


def same_place(a: ir.TensorProtocol, b: ir.TensorProtocol) -> bool:
    """Whether both lie at the same spot of the same file: then nothing has to be read."""
    if not (isinstance(a, ir.ExternalTensor) and isinstance(b, ir.ExternalTensor)):
        return False
    place = [(t.offset or 0, t.nbytes, t.dtype, tuple(t.shape)) for t in (a, b)]
    return place[0] == place[1] and os.path.realpath(a.path) == os.path.realpath(b.path)


def _numbers(tensor: ir.TensorProtocol) -> Array:
    """A tensor's numbers in a row. A file is mapped for this alone, and let go of with the array."""
    try:
        return np.asarray(_own_view(tensor).numpy()).reshape(-1)
    except (OSError, ValueError) as error:
        path = str(tensor.path) if isinstance(tensor, ir.ExternalTensor) else None
        raise FileError(
            f"the numbers of '{tensor.name}' cannot be read: {error}",
            where=path,
            next_step="export or download the model and its data file again",
        ) from error


def _own_view(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    if not isinstance(tensor, ir.ExternalTensor) or tensor.raw is not None:
        return tensor
    return own_tensor(tensor, tensor.name or "")


def _pieces(a: Array, b: Array) -> Iterator[tuple[Array, Array]]:
    for start in range(0, a.size, _PIECE):
        yield a[start : start + _PIECE], b[start : start + _PIECE]


def apart(a: ir.TensorProtocol, b: ir.TensorProtocol) -> Apart | None:
    """Return how far two tensors of one shape are apart; None for texts. Their dtypes may differ."""
    if ir.DataType.STRING in (a.dtype, b.dtype) or tuple(a.shape) != tuple(b.shape):
        return None
    one, other = _numbers(a), _numbers(b)
    if (a.dtype in _COMPLEX) != (b.dtype in _COMPLEX):
        one, other = one.astype(np.complex128), other.astype(np.complex128)
    found = Errors().over(one, other, EXACT)
    size = largest(one)
    relative = found.max_abs / size if size else math.inf if found.max_abs else 0.0
    mean = found.total / found.finite if found.finite else math.nan
    return Apart(found.count, found.wrong, found.max_abs, mean, relative, found.cosine)
