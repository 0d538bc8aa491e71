"""prims::view_of

    output = input

What torch takes a squeeze without axes apart into.
"""

from __future__ import annotations

from typing import Any

from onnxscript import opset18

from torchport.operators.registering import translates

op: Any = opset18  # its annotations know eager tensors only, not a graph's values


@translates("prims::view_of.default")
def view_of(a: Any) -> Any:
    return op.Identity(a)
