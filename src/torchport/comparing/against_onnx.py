"""Hold the tensors of one ONNX model against those of another, or of itself in another engine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
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
        candidate: the model that is held against it, with no outputs but its own.
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
        found = match(layered.given, candidate)
        ends = [(layered.given.graph.outputs[i], candidate.graph.outputs[j]) for i, j in found.outputs]
        matching = [*ends, *found.values.items()]  # what makes an output may have no partner, the output has
        self._partners = {str(b.name): str(a.name) for a, b in matching if str(a.name) in layered.values}
        self._likely = _in_one_role(found.values, layered.values)

    def pairs(self, slices: Slices) -> Mapping[str, Pair]:
        found: dict[str, Pair] = {}
        for arrays in slices.only({*self._partners, *self._likely}):
            matching, likely = ({n: m[n] for n in arrays if n in m} for m in (self._partners, self._likely))
            own = self._run({*matching.values(), *likely.values()})
            for name, array in arrays.items():
                partner = matching.get(name)
                if partner is not None and _comparable(own[partner], array, same_name=partner == name):
                    found[name] = self._pair(partner, own[partner], array)
                elif name in likely and (pair := self._pair(likely[name], own[likely[name]], array)).glance.ok:
                    found[name] = pair
        return found

    def _pair(self, name: str, reference: Array, candidate: Array) -> Pair:
        limit = self._limits(reference.dtype.name, candidate.dtype.name)
        certain = reference.shape == candidate.shape  # or it is another tensor of this name
        return Pair(f"'{name}'", glance(*alike(reference, candidate), limit), name, certain)

    def fetch(self, keys: Mapping[str, Any]) -> Mapping[str, Array]:
        own = self._run(set(keys.values()))
        return {name: own[key] for name, key in keys.items()}

    def _run(self, names: Collection[str]) -> dict[str, Array]:
        return self._layered.run(self._feeds, list(names)) if names else {}


def _in_one_role(matched: Mapping[ir.Value, ir.Value], known: Mapping[str, ir.Value]) -> dict[str, str]:
    """What goes into the same place of two nodes that match: it may be the same, though made otherwise."""
    found: dict[str, str] = {}
    for ours, theirs in matched.items():
        one, other = ours.producer(), theirs.producer()
        if one is not None and other is not None and one.op_identifier() == other.op_identifier():
            pairs = zip(one.inputs, other.inputs, strict=False)
            found |= {str(b.name): str(a.name) for a, b in pairs if a is not None and b is not None and a.name in known}
    return found


def _comparable(reference: Array, candidate: Array, *, same_name: bool) -> bool:
    """Whether two tensors that match can be the same; a quantized one holds other numbers."""
    kinds = {_is_float(a) for a in (reference, candidate)}
    return len(kinds) == 1 and (reference.shape == candidate.shape or same_name)


def _is_float(array: Array) -> bool:
    return "float" in array.dtype.name


def alike(reference: Array, candidate: Array) -> tuple[Array, Array]:
    """Floats of two widths in the reference's: a float16 model is held against its float32 original."""
    kinds = {a.dtype.name for a in (reference, candidate)}
    floats = {"float16", "bfloat16", "float32", "float64"}
    if len(kinds) == 2 and kinds <= floats:
        return reference, candidate.astype(reference.dtype)
    return reference, candidate
