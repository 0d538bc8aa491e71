"""How far apart the tensors of two models may be."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import onnx_ir as ir

from torchport.proving.tolerances import DEFAULTS, Tolerance, tolerance
from torchport.results import Finding

_QUANTIZED = Tolerance(0.1, 0.05)
_HALVES = ("bfloat16", "float16")
_QUANTIZING = {"QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul", "DequantizeLinear"}


@dataclasses.dataclass(frozen=True)
class Limits:
    """The tolerance of a pair of tensors: what was asked for, else that of the coarser dtype."""

    asked: Tolerance | None = None
    quantized: bool = False
    inside: str = ""  # the coarsest floats a model computes in, whatever its outputs are

    def __call__(self, reference: str, candidate: str = "") -> Tolerance:
        known = [name for name in (candidate, self.inside) if name in DEFAULTS]
        own = tolerance(reference, max(known, key=lambda name: DEFAULTS[name].rtol, default=None))
        if own.rtol == 0:
            return own  # whole numbers are exact
        if self.asked is not None:
            return self.asked
        return _QUANTIZED if self.quantized else own

    @property
    def findings(self) -> list[Finding]:
        """What is let through beyond what a dtype allows, unless it was asked for."""
        if self.asked is not None:
            return []
        told = [f"a quantized model: {_QUANTIZED.atol:.0%} of the largest number is let through"] * self.quantized
        if self.inside:
            told.append(f"a model that computes in {self.inside}: it is held to that")
        return list(map(Finding, told))


def limits_for(models: Iterable[ir.Model], asked: Tolerance | None) -> Limits:
    """The tolerances for what these models compute in."""
    known = list(models)
    quantized = any(n.op_type in _QUANTIZING for model in known for n in model.graph)
    inside = next((half for half in _HALVES for model in known if _computes_in(half, model)), "")
    return Limits(asked, quantized, inside)


def _computes_in(dtype: str, model: ir.Model) -> bool:
    """Whether a node of the main graph gives floats of this width."""
    wanted = ir.DataType[dtype.upper()]
    return any(v.dtype == wanted for node in model.graph for v in node.outputs) or any(
        v.dtype == wanted for v in model.graph.initializers.values()
    )
