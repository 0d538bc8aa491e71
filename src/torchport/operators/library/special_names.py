"""torch.special's other names for operators that are composed: special_gammaln is lgamma, special_gammainc igamma, ...

torch.export keeps the name that was called, and a composition goes by the name.

Source of truth: ATen's native/native_functions.yaml.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchport.operators.library import bessel, error_function, gamma, incomplete_gamma

NAMES = {
    "special_digamma": "digamma",
    "special_psi": "digamma",
    "special_gammaln": "lgamma",
    "special_multigammaln": "mvlgamma",
    "special_polygamma": "polygamma",
    "special_gammainc": "igamma",
    "special_gammaincc": "igammac",
    "special_erf": "erf",
    "special_erfc": "erfc",
    "special_erfinv": "erfinv",
    "special_i0": "i0",
}


def compositions() -> dict[Any, Callable[..., Any]]:
    aten: Any = torch.ops.aten
    known: dict[Any, Callable[..., Any]] = {}
    for family in (bessel, error_function, gamma, incomplete_gamma):
        known |= family.compositions()
    return {getattr(aten, name).default: known[getattr(aten, own).default] for name, own in NAMES.items()}
