"""Hold the tensors of one ONNX model against those of another, or of itself in another engine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import onnx_ir as ir

from torchport.comparison.intermediates import Layered, Slices
from torchport.comparison.pair_torch import Pair
from torchport.inspection.matching.matcher import beyond_doubt, match
from torchport.numerics.check import quick_check
from torchport.numerics.tolerance import Tolerance
from torchport.tensors import Array

_BLOCKS = "com.microsoft.nchwc"


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
        plain = (_blocked(layered.given.graph) | _blocked(candidate.graph)).isdisjoint
        known = layered.values
        self._partners = {str(b.name): str(a.name) for a, b in matching if a.name in known and plain((a, b))}
        self._certain = {str(b.name) for _, b in ends} | {str(found.values[a].name) for a in beyond_doubt(found)}
        self._likely = _in_one_role(found.values, known)

    def pairs(self, slices: Slices) -> Mapping[str, Pair]:
        found: dict[str, Pair] = {}
        for arrays in slices.only({*self._partners, *self._likely}):
            choices = {name: self._choices(name) for name in arrays}
            own = self._run({n for names in choices.values() for n in names})
            for name, array in arrays.items():
                partner = self._partners.get(name)
                if partner is not None and _comparable(own[partner], array, same_name=partner == name):
                    found[name] = self._pair(partner, name, own[partner], array)
                if name in found and (found[name].check.ok or found[name].certain):
                    continue
                others = (self._pair(n, name, own[n], array) for n in choices[name] if n != partner)
                if (better := next((p for p in others if p.check.ok), None)) is not None:
                    found[name] = better
        return found

    def _choices(self, name: str) -> list[str]:
        """The reference's tensors that may be this one: the partner, and what else it can be if that is a guess."""
        namesake = name if name not in self._certain and name in self._layered.values else None
        found = dict.fromkeys([self._partners.get(name), self._likely.get(name), namesake])
        return [n for n in found if n is not None]

    def _pair(self, partner: str, name: str, reference: Array, candidate: Array) -> Pair:
        limit = self._limits(reference.dtype.name, candidate.dtype.name)
        certain = name in self._certain and reference.shape == candidate.shape  # or it is another tensor of this name
        return Pair(f"'{partner}'", quick_check(*alike(reference, candidate), limit), partner, certain)

    def fetch(self, keys: Mapping[str, Any]) -> Mapping[str, Array]:
        own = self._run(set(keys.values()))
        return {name: own[key] for name, key in keys.items()}

    def _run(self, names: Collection[str]) -> dict[str, Array]:
        return self._layered.run(self._feeds, list(names)) if names else {}


def _blocked(graph: ir.Graph) -> set[ir.Value]:
    """Tensors in the layout of ONNX Runtime's own convolutions, which has the numbers in another order."""
    found: set[ir.Value] = set()
    for node in graph:
        own = node.domain == _BLOCKS
        if node.op_type != "ReorderOutput" and (own or any(v in found for v in node.inputs)):
            found.update(node.outputs)
    return found


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
    if isinstance(reference, list) or isinstance(candidate, list):  # onnx's evaluator gives an optional as a list
        return False
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
