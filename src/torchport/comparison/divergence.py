"""Where in a graph an error is introduced, found by what agrees and what does not.

Not every tensor has a partner on the other side: a sum before its bias, a fused norm. Such a tensor is unaffected if
something computed from it agrees again. The error is in the nodes between the last tensors that agree and the first
that has a partner and does not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import onnx_ir as ir

from torchport.irtools.traversal import used_values

# What these give may be right though what they get is wrong: they look at shapes, or take a part.
_TELLS_NOTHING = {
    *("Shape", "Size", "ConstantOfShape", "Gather", "GatherElements", "GatherND", "Slice", "Split", "Where", "Clip"),
    *("Relu", "Max", "Min", "MaxPool", "GlobalMaxPool", "ReduceMax", "ReduceMin", "TopK", "Sign", "Compress"),
}


@dataclasses.dataclass(frozen=True)
class Region:
    """Nodes among which an error is introduced.

    Attributes:
        nodes: in order of execution; the error is certain to be in the first if there is one only.
        end: the tensor that shows it.
    """

    nodes: tuple[ir.Node, ...]
    end: ir.Value


class Spread:
    """How an error goes through a graph.

    Args:
        graph: the candidate's main graph.
        good: names of tensors that agree with their partner.
        bad: names of tensors that have a partner and do not agree.
        ends: names of the model's own outputs.
        sure: those of `good` that agree to the last digits. Others may agree for want of sensitivity: a softmax
            of almost equal numbers hides what is wrong with them.
        certain: those of `bad` whose partner is beyond doubt.
    """

    def __init__(
        self,
        graph: ir.Graph,
        good: Collection[str],
        bad: Collection[str],
        *,
        ends: Collection[str],
        sure: Collection[str],
        certain: Collection[str],
    ) -> None:
        self._nodes = list(graph)
        self._good, self._bad = set(good), set(bad)
        self._users: dict[ir.Value, list[ir.Node]] = {}
        for node in self._nodes:
            for value in used_values(node):
                self._users.setdefault(value, []).append(node)
        self._ends, self._sure, self._certain = set(ends), set(sure), set(certain)
        self.off = self._find_off()
        self.propagated = self._find_propagated()

    def _find_off(self) -> set[ir.Value]:
        """Tensors that the error is in.

        One that differs from a certain partner is off if the error reaches an output from it. Another one is off if
        nothing made from it is right: what is surely right is not made from what is wrong.
        """
        unaffected: set[ir.Value] = set()
        off: set[ir.Value] = set()
        doubtful = self._doubtful()
        for node in reversed(self._nodes):
            for value in node.outputs:
                name = str(value.name)
                if name in self._good and value not in doubtful:
                    continue
                users = self._users.get(value, ())
                reaches = name in self._ends or any(o in off for n in users for o in n.outputs)
                made = [o for n in users if n.op_type not in _TELLS_NOTHING for o in n.outputs]
                if name in self._certain and reaches:
                    off.add(value)
                elif any(self._is_sure(o) or o in unaffected for o in made):
                    unaffected.add(value)
                elif reaches:
                    off.add(value)
        return off

    def _doubtful(self) -> set[ir.Value]:
        """Tensors made from one that is surely off that agree, but not to the last digits: no proof of anything."""
        below: set[ir.Value] = set()
        for node in self._nodes:
            came = any(v in below or str(v.name) in self._certain for v in used_values(node))
            below.update(o for o in node.outputs if came and str(o.name) not in self._sure)
        return {v for v in below if str(v.name) in self._good}

    def _find_propagated(self) -> set[ir.Value]:
        """Tensors that are off because one before them is, which has a partner and differs."""
        found: set[ir.Value] = set()
        for node in self._nodes:
            if any(v in found or (v in self.off and str(v.name) in self._bad) for v in used_values(node)):
                found.update(o for o in node.outputs if o in self.off)
        return found

    def _is_sure(self, value: ir.Value) -> bool:
        """Whole numbers and truths are no evidence: a comparison or an index comes out right from wrong numbers too."""
        return str(value.name) in self._sure and (value.dtype is None or value.dtype.is_floating_point())

    def introduced(self) -> list[ir.Node]:
        """Nodes that give what is wrong, and before which nothing was seen to be wrong."""
        return [
            n
            for n in self._nodes
            if any(o in self.off and str(o.name) in self._bad and o not in self.propagated for o in n.outputs)
        ]

    def first(self) -> Region | None:
        """The first place where the error shows, and the nodes it may be in."""
        for node in self._nodes:
            for value in node.outputs:
                if value in self.off and str(value.name) in self._bad:
                    return Region(self._leading_to(value), value)
        return None

    def _leading_to(self, end: ir.Value) -> tuple[ir.Node, ...]:
        found: set[ir.Node] = set()
        waiting = [end]
        while waiting:
            producer = waiting.pop().producer()
            if producer is not None and producer not in found:
                found.add(producer)
                waiting += [v for v in used_values(producer) if v in self.off]
        return tuple(n for n in self._nodes if n in found)
