"""What the numbers of one weight are like, read piece by piece: a mapped weight never fills the memory."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import onnx_ir as ir

_CHUNK = 1 << 20


@dataclasses.dataclass(frozen=True)
class Statistics:
    """Of the finite numbers of a tensor; NaN and infinite ones are counted."""

    min: float
    max: float
    mean: float
    std: float
    zeros: int
    nan: int
    inf: int

    def __str__(self) -> str:
        odd = f", {self.nan:,} NaN, {self.inf:,} infinite" if self.nan or self.inf else ", all finite"
        return (
            f"min {self.min:.4g}, max {self.max:.4g}, mean {self.mean:.4g}, std {self.std:.4g}, "
            f"{self.zeros:,} zeros{odd}"
        )


def statistics(tensor: ir.TensorProtocol) -> Statistics | None:
    """Reads the tensor; None for texts and complex numbers, and where there is nothing to read."""
    if tensor.dtype in (ir.DataType.STRING, ir.DataType.COMPLEX64, ir.DataType.COMPLEX128) or not tensor.size:
        return None
    values = np.asarray(tensor.numpy()).reshape(-1)
    count, mean, squares = 0, 0.0, 0.0
    low, high, zeros, nan, inf = math.inf, -math.inf, 0, 0, 0
    for start in range(0, values.size, _CHUNK):
        piece = values[start : start + _CHUNK].astype(np.float64)
        nan += int(np.isnan(piece).sum())
        inf += int(np.isinf(piece).sum())
        piece = piece[np.isfinite(piece)]
        if not piece.size:
            continue
        zeros += int((piece == 0).sum())
        low, high = min(low, float(piece.min())), max(high, float(piece.max()))
        # two parts' means and squared deviations joined, after Chan, Golub and LeVeque
        shift, total = float(piece.mean()) - mean, count + piece.size
        squares += float(((piece - piece.mean()) ** 2).sum()) + shift**2 * count * piece.size / total
        mean += shift * piece.size / total
        count = total
    if not count:
        return Statistics(math.nan, math.nan, math.nan, math.nan, zeros, nan, inf)
    return Statistics(low, high, mean, math.sqrt(squares / count), zeros, nan, inf)
