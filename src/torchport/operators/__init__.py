"""What torchport knows about operators.

tp.operators.find("asinh")          names with this in them, torch's and ONNX's
tp.operators.show("aten::asinh")    its schemas, its ways to ONNX; for ONNX operators versions, types and kernels
tp.operators.missing()              what no route maps
tp.operators.coverage(model, (x,))  every operator a model uses, before exporting
tp.operators.test(my_add)           an operator's kernel and lowering beside PyTorch
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["coverage", "find", "missing", "show", "test"]

# imported when first used; `coverage` and `test` capture models, so they live behind the rooms that can
_HOMES = {
    "find": "torchport.operators.lookup",
    "show": "torchport.operators.lookup",
    "missing": "torchport.operators.lookup",
    "coverage": "torchport.pipeline.coverage",
    "test": "torchport.pipeline.operator_trials",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'torchport.operators' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)
