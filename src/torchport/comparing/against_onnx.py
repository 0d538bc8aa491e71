"""Hold the tensors of one ONNX model against those of another, or of itself in another engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from torchport.comparing.against_torch import Pair
from torchport.comparing.glance import glance
from torchport.comparing.layered import Layered, Slices
from torchport.graph.matching.nodes import match
from torchport.proving.tolerances import Tolerance

Array = np.ndarray[Any, Any]


class OnnxReference:
    """Another ONNX model, all its tensors at hand.

    Args:
        layered: the reference.
        candidate: the model that is held against it.
        feeds: the reference's inputs.
        limits: the tolerance for a pair of dtypes.
    """

    def __init__(
        self,
        layered: Layered,
        candidate: ir.Model,
        feeds: Mapping[str, Array],
        limits: Callable[[str, str], Tolerance],
    ) -> None:
        self._layered, self._feeds, self._limits = layered, feeds, limits
        found = match(layered.model, candidate)
        self._partners = {str(b.name): str(a.name) for a, b in found.values.items() if str(a.name) in layered.values}

    def pairs(self, slices: Slices) -> Mapping[str, Pair]:
        found: dict[str, Pair] = {}
        for arrays in slices.only(self._partners):
            own = self.fetch({n: self._partners[n] for n in arrays})
            found |= {n: self._pair(self._partners[n], own[n], array) for n, array in arrays.items()}
        return found

    def _pair(self, name: str, reference: Array, candidate: Array) -> Pair:
        limit = self._limits(reference.dtype.name, candidate.dtype.name)
        return Pair(f"'{name}'", glance(*alike(reference, candidate), limit), name)

    def fetch(self, keys: Mapping[str, Any]) -> Mapping[str, Array]:
        own = self._layered.run(self._feeds, list(dict.fromkeys(keys.values()))) if keys else {}
        return {name: own[key] for name, key in keys.items()}


def alike(reference: Array, candidate: Array) -> tuple[Array, Array]:
    """Floats of two widths in the reference's: a float16 model is held against its float32 original."""
    kinds = {a.dtype.name for a in (reference, candidate)}
    floats = {"float16", "bfloat16", "float32", "float64"}
    if len(kinds) == 2 and kinds <= floats:
        return reference, candidate.astype(reference.dtype)
    return reference, candidate
