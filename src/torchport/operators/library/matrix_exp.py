"""aten::linalg_matrix_exp, aten::matrix_exp

    e^A = (e^(A/2ˢ))^(2ˢ), s such that the norm of A/2ˢ is at most one, and its exponential the Taylor sum up to A¹⁸/18!

Torch has no translation and ONNX no operator. The next term is 1/19! = 8e-18, below float64's last digit. How often to
square depends on the numbers: every matrix goes through all the squarings, and keeps only the first s of them. The
side of the matrix may vary.

A square is written as products and a sum: where the exponential is too large for its type, PyTorch's matrix product
gives infinities of both signs and hence NaN, and ONNX Runtime's, which adds before it rounds, gives infinities.

Source of truth: PyTorch's answers; aten/src/ATen/native/LinearAlgebra.cpp sums the same series.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchport.operators.library.loops import repeated
from torchport.operators.library.triangular import is_empty, real
from torchport.operators.registering import composes

DEGREE = 18
SQUARINGS = 24  # for norms up to 2²⁴, where float32 holds no exponential but one of a very special matrix


@composes("aten::linalg_matrix_exp.default", "aten::matrix_exp.default")
def matrix_exp(matrix: Tensor) -> Tensor:
    if is_empty(real(matrix)):
        return matrix.clone()
    norm = matrix.abs().sum(-2, keepdim=True).amax(-1, keepdim=True)
    halvings = norm.log2().ceil().clamp(min=0, max=SQUARINGS)
    small = matrix * (-halvings).exp2()

    def term(k: Tensor, result: Tensor, small: Tensor) -> tuple[Tensor]:
        unit = torch.eye(small.shape[-1], dtype=small.dtype, device=small.device)
        return (unit + small @ result / (DEGREE - k),)

    def square(k: Tensor, result: Tensor, halvings: Tensor) -> tuple[Tensor]:
        squared = (result.unsqueeze(-1) * result.unsqueeze(-3)).sum(-2)
        return (torch.where(halvings > k, squared, result),)

    unit = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    (result,) = repeated(DEGREE, term, (unit.expand(matrix.shape),), (small,))
    return repeated(SQUARINGS, square, (result,), (halvings,))[0]
