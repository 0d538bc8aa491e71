"""aten::take, aten::put

    take   output[i] = flat input[index[i]]
    put    flat output[index[i]] = source[i], or adds to it

An index below zero counts from the end. Torch has no translation for put, and takes single numbers without a shape.

Source of truth: ATen's native/TensorAdvancedIndexing.cpp.
"""

from __future__ import annotations

from typing import Any

import torch

from torchport.operators.registering import composes


@composes("aten::take.default")
def take(self: Any, index: Any) -> Any:
    flat = self.reshape(-1)
    return flat.index_select(0, _from_start(index, flat)).reshape(index.shape)


@composes("aten::put.default")
def put(self: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    flat = self.reshape(-1)
    scatter = torch.scatter_add if accumulate else torch.scatter
    return scatter(flat, 0, _from_start(index, flat), source.reshape(-1)).reshape(self.shape)


def _from_start(index: Any, flat: Any) -> Any:
    index = index.reshape(-1)
    return torch.where(index < 0, index + flat.shape[0], index)
