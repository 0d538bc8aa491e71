"""A model as a row of units, any of which make a model of their own: what a search for a fault cuts up.

A unit is mostly one node. Nodes stand together in a unit where no cut is possible between them: a sequence runs there,
or a tensor that the reference does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import onnx_ir as ir
from onnx_ir.passes.common import LiftConstantsToInitializersPass

from torchport.comparing.recorded import is_tensor
from torchport.editing.extract import cut, without_unused_inputs
from torchport.irtools.traversal import used_by

_SINCE_WEIGHTS_ARE_NO_INPUTS = 4  # the IR version


class Units:
    """The units of a model in the order they run.

    Args:
        model: the model; it must say the types of its tensors and is changed: constants become weights, so that they
            are no nodes of a part.
        may_cut_at: whether a tensor may be the input of a part; None for any tensor.

    Example:
        >>> units = Units(model)
        >>> half = units.model_of(range(len(units) // 2))
    """

    def __init__(self, model: ir.Model, may_cut_at: Callable[[str], bool] | None = None) -> None:
        self.model = model
        if model.ir_version >= _SINCE_WEIGHTS_ARE_NO_INPUTS:
            LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
        self._readers = _readers(model)
        self._ends = set(model.graph.outputs)
        self._with_weights = {n for n in model.graph if self._goes_with_readers(n)}
        nodes = [n for n in model.graph if n not in self._with_weights]
        self.units = _grouped(nodes, self._walls(nodes, may_cut_at or (lambda name: True)))

    def __len__(self) -> int:
        return len(self.units)

    def nodes(self, chosen: Sequence[int]) -> list[ir.Node]:
        """The nodes of these units, without those that only prepare weights."""
        return [n for i in chosen for n in self.units[i]]

    def model_of(self, chosen: Sequence[int]) -> ir.Model:
        """A model of these units alone: it takes what they use of others, and gives what others use of them."""
        inside = dict.fromkeys(self.nodes(chosen))
        entering = [str(v.name) for n in inside for v in used_by(n) if self._enters(v, inside)]
        leaving = [str(v.name) for n in inside for v in n.outputs if v.name and self._leaves(v, inside)]
        if not leaving:  # nobody uses what they give
            leaving = [str(v.name) for n in list(inside)[-1:] for v in n.outputs if is_tensor(v)]
        return without_unused_inputs(cut(self.model, list(dict.fromkeys(entering)), leaving))

    def _enters(self, value: ir.Value, inside: dict[ir.Node, None]) -> bool:
        producer = value.producer()
        return not value.is_initializer() and producer not in inside and producer not in self._with_weights

    def _leaves(self, value: ir.Value, inside: dict[ir.Node, None]) -> bool:
        readers = self._readers.get(value, [])
        return value in self._ends or any(r not in inside for r in readers)

    def _goes_with_readers(self, node: ir.Node) -> bool:
        """A node that prepares a weight (dequantizes, transposes it) is part of each part that uses the weight.

        It would else become an input, and what engines do with constant weights would not be seen any more.
        """
        if node.op_type == "Constant":
            return not any(v in self._ends for v in node.outputs)
        if not node.inputs or any(v in self._ends or not self._readers.get(v) for v in node.outputs):
            return False
        return all(v.is_initializer() or _is_constant(v) for v in used_by(node))

    def _walls(self, nodes: list[ir.Node], may_cut_at: Callable[[str], bool]) -> list[bool]:
        """For each node but the last whether the model may be cut after it: everything alive there must be cuttable."""
        place = {n: i for i, n in enumerate(nodes)}
        change = [0] * (len(nodes) + 1)
        for i, node in enumerate(nodes):
            for value in node.outputs:
                last = max((place[r] for r in self._readers.get(value, ()) if r in place), default=i)
                if last > i and not (is_tensor(value) and may_cut_at(str(value.name))):
                    change[i] += 1
                    change[last] -= 1
        return [held == 0 for held in accumulate(change)][: len(nodes)]


def _is_constant(value: ir.Value) -> bool:
    producer = value.producer()
    return producer is not None and producer.op_type == "Constant"


def _readers(model: ir.Model) -> dict[ir.Value, list[ir.Node]]:
    """Who uses each value; a use inside a branch is one by the node that holds the branch."""
    found: dict[ir.Value, list[ir.Node]] = {}
    for node in model.graph:
        for value in used_by(node):
            found.setdefault(value, []).append(node)
    return found


def _grouped(nodes: list[ir.Node], may_end: list[bool]) -> list[tuple[ir.Node, ...]]:
    groups: list[tuple[ir.Node, ...]] = []
    open_group: list[ir.Node] = []
    for node, ends in zip(nodes, may_end, strict=True):
        open_group.append(node)
        if ends:
            groups.append(tuple(open_group))
            open_group = []
    return [*groups, tuple(open_group)] if open_group else groups
