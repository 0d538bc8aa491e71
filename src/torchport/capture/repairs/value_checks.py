"""torch.cov, torch.corrcoef, torch.combinations, torch.linalg.lstsq, ctc_loss, torch.equal, torch.allclose.

They look at values as they compute. They are called in the form of torchport's library instead, which gives the same
numbers without looking. The truth of two tensors being equal is asked for with `item()`, which torch.export knows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from torchport.capture.repairs.repair import capture_repair
from torchport.operators import registration
from torchport.operators.library.linalg_solve import lstsq
from torchport.operators.library.losses import ctc_loss
from torchport.operators.library.statistics import combinations, corrcoef, cov
from torchport.operators.registration import replaces

_SIGNS = ("aten.equal", "aten.allclose", "aten._ctc_loss", "aten.linalg_lstsq", "unbacked symbols")


@replaces("torch.equal", "torch.Tensor.equal")
def equal(input: Any, other: Any) -> Any:
    return (input == other).all().item() if input.shape == other.shape else False


@replaces("torch.allclose", "torch.Tensor.allclose")
def allclose(input: Any, other: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Any:
    return torch.isclose(input, other, rtol, atol, equal_nan).all().item()


replaces("torch.cov", "torch.Tensor.cov")(cov)
replaces("torch.corrcoef", "torch.Tensor.corrcoef")(corrcoef)
replaces("torch.combinations")(combinations)
replaces("torch.linalg.lstsq")(lstsq)
replaces("torch.nn.functional.ctc_loss")(ctc_loss)


def _needs_value_checks(error: Exception) -> bool:
    return any(sign in str(error) for sign in _SIGNS)


@capture_repair("functions that look at values by ones that do not", after=_needs_value_checks)
@contextlib.contextmanager
def value_checks(target: Any) -> Iterator[bool]:
    with _Instead():
        yield True


class _Instead(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self._instead = registration.found(registration.registered_in(__name__))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._instead.get(func, func)(*args, **(kwargs or {}))
