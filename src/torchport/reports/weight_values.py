"""The numbers of a model's weights in short: statistics and a histogram, of a sample where there are many."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import onnx_ir as ir

from torchport.inspection.look import statistics
from torchport.results import to_json
from torchport.tensors import Array

BINS = 32
_SAMPLE = 1 << 16  # numbers of a weight that are read
_BLOCKS = 64  # places in a weight that they are read from: a file in pieces, not a page for each number
_FEW = 16  # numbers that are shown as they are
_LONGEST_TEXT = 200
_NO_NUMBERS = (ir.DataType.STRING, ir.DataType.COMPLEX64, ir.DataType.COMPLEX128)


class WeightReader:
    """Reads weights for as long as its time lasts; what came later is left unread, and says so."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def read(self, tensor: ir.TensorProtocol) -> dict[str, Any]:
        """Return `values` of a few numbers, or `statistics` and `histogram`; `read` is how many numbers they are of."""
        if not tensor.size or time.monotonic() > self._end:
            return {"read": 0}
        if tensor.size <= _FEW:
            return {"read": tensor.size, "values": str(tensor.numpy().tolist())[:_LONGEST_TEXT]}
        if tensor.dtype in _NO_NUMBERS:
            return {"read": 0}
        sample = _sample(np.asarray(tensor.numpy()).reshape(-1))
        found = statistics(ir.tensor(sample))
        return {"read": sample.size, "statistics": to_json(found), "histogram": histogram(sample)}


def _sample(values: Array) -> Array:
    """Return all numbers as float64, or blocks of them spread over the whole."""
    if values.size <= _SAMPLE:
        return values.astype(np.float64)
    length = _SAMPLE // _BLOCKS
    starts = np.linspace(0, values.size - length, _BLOCKS).astype(np.int64)
    return np.concatenate([values[start : start + length].astype(np.float64) for start in starts])


def histogram(values: Array) -> dict[str, Any] | None:
    """Return the counts in bins between the least and the largest finite number; None if no number is finite."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return None
    low, high = float(finite.min()), float(finite.max())
    if not np.isfinite(high - low):  # a span that float64 cannot hold
        return None
    counts, _ = np.histogram(finite, bins=BINS, range=(low, high) if low < high else (low - 0.5, low + 0.5))
    return {"low": low, "high": high, "counts": counts.tolist()}


def place_of(tensor: ir.TensorProtocol) -> dict[str, Any]:
    """Return how many bytes a weight takes, and the data file it lies in."""
    file = str(tensor.location) if isinstance(tensor, ir.ExternalTensor) else ""
    return {"bytes": tensor.nbytes if tensor.dtype != ir.DataType.STRING else 0, **({"file": file} if file else {})}
