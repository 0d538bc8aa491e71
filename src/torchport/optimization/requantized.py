"""Models whose quantizer leaves out the layers that are to stay in float, and the layers it can quantize."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import onnx_ir as ir

from torchport.optimization.dynamic_int8 import OPERATORS
from torchport.optimization.float_layers import QuantizedModel
from torchport.optimization.scheme import DYNAMIC, FLOAT16, Scheme


class RequantizedModel(QuantizedModel):
    """A model that is quantized anew for each choice of layers.

    Args:
        layers: that can be quantized.
        folder: for the files it makes.
        make: quantizes all but these layers into a file.
    """

    def __init__(self, layers: Sequence[str], folder: Path, make: Callable[[Path, Collection[str]], None]) -> None:
        self.layers = tuple(layers)
        self._folder, self._make = folder, make
        self._count = 0
        self._whole: Path | None = None

    def without(self, names: Collection[str]) -> Path:
        if not names and self._whole is not None:
            return self._whole
        target = self._folder / f"without{self._count}.onnx"
        self._count += 1
        self._make(target, names)
        self._whole = self._whole if names else target
        return target


def quantizable(model: ir.Model, scheme: Scheme) -> list[str]:
    """Return the layers that a scheme without stored ranges quantizes."""
    if scheme.name == FLOAT16:
        return [str(n.name) for n in model.graph if any(_is_weight(v) for v in n.inputs)]
    operators = OPERATORS if scheme.name == DYNAMIC else ("MatMul", "Gemm")
    return [str(n.name) for n in model.graph if n.op_type in operators and any(_is_weight(v) for v in n.inputs[1:2])]


def _is_weight(value: ir.Value | None) -> bool:
    tensor = value.const_value if value is not None and value.is_initializer() else None
    return tensor is not None and tensor.dtype == ir.DataType.FLOAT and len(tensor.shape) > 0
