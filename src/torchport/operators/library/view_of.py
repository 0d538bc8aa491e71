"""prims::view_of

    output = input

What torch takes a squeeze without axes apart into.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from onnxscript import opset18

op: Any = opset18  # its annotations know eager tensors only, not a graph's values


def view_of(a: Any) -> Any:
    return op.Identity(a)


def translations() -> dict[Any, Callable[..., Any]]:
    prims: Any = torch.ops.prims
    return {prims.view_of.default: view_of}
