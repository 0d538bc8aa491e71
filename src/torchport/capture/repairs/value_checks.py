"""torch.cov, torch.corrcoef, torch.combinations, torch.linalg.lstsq, ctc_loss, torch.equal, torch.allclose.

They look at values as they compute. They are called in the form of torchport's library instead, which gives the same
numbers without looking. The truth of two tensors being equal is asked for with `item()`, which torch.export knows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from torchport.operators.library.combinations import combinations
from torchport.operators.library.covariance import corrcoef, cov
from torchport.operators.library.ctc_loss import ctc_loss
from torchport.operators.library.lstsq import lstsq

NAME = "functions that look at values by ones that do not"


_SIGNS = ("aten.equal", "aten.allclose", "aten._ctc_loss", "aten.linalg_lstsq", "unbacked symbols")


def equal(input: Any, other: Any) -> Any:
    return (input == other).all().item() if input.shape == other.shape else False


def allclose(input: Any, other: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Any:
    return torch.isclose(input, other, rtol, atol, equal_nan).all().item()


_INSTEAD: dict[Any, Callable[..., Any]] = {
    torch.cov: cov,
    torch.Tensor.cov: cov,
    torch.corrcoef: corrcoef,
    torch.Tensor.corrcoef: corrcoef,
    torch.combinations: combinations,
    torch.linalg.lstsq: lstsq,
    torch.equal: equal,
    torch.Tensor.equal: equal,
    torch.allclose: allclose,
    torch.Tensor.allclose: allclose,
    torch.nn.functional.ctc_loss: ctc_loss,
}


def knows(error: Exception) -> bool:
    return any(sign in str(error) for sign in _SIGNS)


@contextlib.contextmanager
def repaired(target: Any) -> Iterator[bool]:
    with _Instead():
        yield True


class _Instead(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _INSTEAD.get(func, func)(*args, **(kwargs or {}))
