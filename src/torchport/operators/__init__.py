"""What torchport knows about operators.

tp.operators.find("asinh")          names with this in them, torch's and ONNX's
tp.operators.show("aten::asinh")    its schemas, its ways to ONNX; for ONNX operators versions, types and kernels
tp.operators.missing()              what no route maps
tp.operators.coverage(model, (x,))  every operator a model uses, before exporting
tp.operators.test(my_add)           an operator's kernel and lowering beside PyTorch
"""

from __future__ import annotations

from torchport.facade import lazy_names

# `coverage` and `test` capture models, so they live in a package further down; this module is a facade
__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "torchport.conversion.operators": "coverage test",
        "torchport.operators.catalog": "find missing show",
    },
)
