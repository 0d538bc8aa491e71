"""torch.combinations

    every choice of r numbers of a vector, in the order of itertools

PyTorch's own chooses by a mask, whose number of places nothing that is captured knows.

Source of truth: ATen's native/Itertools.cpp.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch


def combinations(input: Any, r: int = 2, with_replacement: bool = False) -> Any:
    if not isinstance(input.shape[0], int):
        raise NotImplementedError("torch.combinations of a size that varies; index with a mask of your own")
    chosen = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    places = list(chosen(range(input.shape[0]), r))
    index = torch.tensor(places, dtype=torch.int64, device=input.device).reshape(len(places), r)
    return input[index] if r else input.new_empty(0)
