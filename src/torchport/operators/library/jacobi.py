"""Jacobi's method, which eigh.py and svd.py share: rotations of two columns at a time until all are orthogonal.

A sweep rotates every pair once. The pairs are taken as in a tournament: in a round the columns are paired from both
ends, so that the partners are the columns in reverse, and a round is a handful of nodes for all pairs together; then
the columns move on by one place. After a sweep all are where they were. Column j becomes cⱼ·aⱼ + sⱼ·a₍partner of j₎.

Convergence is quadratic at the end; the number of sweeps is fixed, because a graph does not look at the numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = 64  # columns; for more the number of sweeps was not tried


def rounds(count: int, dtype: torch.dtype) -> int:
    """As many as bring any matrix that was tried to its last digit, also with rows of very different sizes."""
    if dtype is torch.float64:
        sweeps = 8 if count <= 8 else 12 if count <= 16 else 18
    else:
        sweeps = 7 if count <= 8 else 9 if count <= 16 else 12
    return sweeps * (count - 1 + count % 2) if count > 1 else 0


def rotation(own: Tensor, cross: Tensor) -> tuple[Tensor, Tensor]:
    """c and s of each column: `own` are the squares of the columns, or the diagonal; `cross` what is to vanish.

    t = sign(d) · 2·cross / (|d| + √(d² + 4·cross²)), the smaller angle; d is the difference of the two in `own`.
    A column's partner turns by the opposite angle; where both are equal the first of the two counts as the larger.
    """
    count = own.shape[-1]
    places = 2 * torch.arange(count, device=own.device)
    difference = own - own.flip(-1)
    positive = (difference > 0) | ((difference == 0) & (places < count - 1))
    twice = 2 * cross
    below = difference.abs() + (difference * difference + twice * twice).sqrt()
    idle = (places == count - 1) | (below == 0)  # the one in the middle has no partner
    tangent = torch.where(idle, torch.zeros_like(twice), twice / torch.where(idle, torch.ones_like(below), below))
    tangent = torch.where(positive, tangent, -tangent)
    cosine = 1 / (1 + tangent * tangent).sqrt()
    return cosine, tangent * cosine


def rotated(matrix: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """The columns, each with its share of its partner's."""
    return matrix * cosine.unsqueeze(-2) + matrix.flip(-1) * sine.unsqueeze(-2)


def moved_on(matrix: Tensor) -> Tensor:
    """The columns for the next round: the last comes to the front; of an even number the first stays where it is."""
    stays = 1 - matrix.shape[-1] % 2
    return torch.cat([matrix[..., :stays], matrix[..., -1:], matrix[..., stays:-1]], -1)
