"""torch.linalg.lstsq

    solution = V · diag(1/σ, 0 for those below rcond times the largest) · Uᵀ · B, A = U · diag(σ) · Vᵀ

The shortest of the best solutions, which PyTorch's drivers come to in other ways. PyTorch's own cannot be captured:
residuals are given only if all matrices have full rank. Here they are whenever there are more equations than unknowns;
the driver gelsy, which is the default, gives none.

Source of truth: PyTorch's answers and ATen's native/BatchLinearAlgebra.cpp.
"""

from __future__ import annotations

from typing import Any

import torch


def lstsq(input: Any, b: Any, rcond: float | None = None, *, driver: str | None = None) -> Any:
    vector = b.dim() == 1 or (input.dim() - 1 == b.dim() and b.shape == input.shape[:-1])
    right = b.unsqueeze(-1) if vector else b
    height, width = input.shape[-2:]
    share = torch.finfo(input.dtype).eps * max(height, width) if rcond is None else rcond
    u, values, vh = torch.linalg.svd(input, full_matrices=False)
    kept = values > share * values[..., :1]
    inverse = torch.where(kept, 1 / torch.where(kept, values, torch.ones_like(values)), torch.zeros_like(values))
    solution = vh.mT @ (inverse.unsqueeze(-1) * (u.mT @ right))
    empty = input.new_zeros(0)
    residuals = (
        (input @ solution - right).square().sum(-2) if height > width and driver not in (None, "gelsy") else empty
    )
    rank = kept.sum(-1) if driver != "gels" else empty.long()
    shown = values if driver in ("gelsd", "gelss") else empty
    answer: Any = torch.return_types.linalg_lstsq  # type: ignore[attr-defined]
    return answer([solution.squeeze(-1) if vector else solution, residuals, rank, shown])
