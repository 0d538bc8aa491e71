"""aten::split by a size that varies, aten::chunk along a dynamic axis

    part i = x[i · size : (i + 1) · size]        size of a chunk = ⌈size of x / chunks⌉

torch's translation makes a sequence of as many parts as the running model finds; onnxscript's optimizer fails on it.
How many parts there are was settled by the capture, so that each can be a slice. torch makes `split` of `chunk` by
itself as soon as anything is replaced.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import guard_int

from torchport.operators.composing import only_where
from torchport.operators.registering import composes

aten: Any = torch.ops.aten


@composes("aten::split.Tensor")
@only_where(lambda self, split_size, dim=0: isinstance(split_size, torch.SymInt))
def split(self: Any, split_size: Any, dim: int = 0) -> Any:
    count = guard_int((self.shape[dim] + split_size - 1) // split_size)
    return [aten.slice.Tensor(self, dim, i * split_size, (i + 1) * split_size) for i in range(count)]


@composes("aten::chunk.default")
@only_where(lambda self, chunks, dim=0: isinstance(self.shape[dim], torch.SymInt))
def chunk(self: Any, chunks: int, dim: int = 0) -> Any:
    return self.split((self.shape[dim] + chunks - 1) // chunks, dim)
