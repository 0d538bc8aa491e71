"""Reduce a model to its smallest part that still fails a check: tp.reduce."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

import onnx_ir as ir
from onnx_ir.passes.common import LiftConstantsToInitializersPass

from torchport.comparison.tensor_cache import Recorded, fit, is_tensor, typed
from torchport.editing.extract import cut, without_unused_inputs
from torchport.engines.registry import DEFAULT
from torchport.errors import EngineError, InputError, OptionError, TorchportError
from torchport.files import onnx_files
from torchport.irtools.metadata import origin_of
from torchport.irtools.node_reader import is_constant, is_constant_node
from torchport.irtools.traversal import used_values
from torchport.numerics.check import rounded
from torchport.results import Origin, Record
from torchport.tensors import Array

# Reduce a model to the smallest part of it that still fails a check.
#
# The nodes stand in the order they run. One half of them is made a model of its own, fed with what the whole model
# gives it, and checked: if it fails, the search goes on in it, else in the other half, which is taken on trust, as one
# of the two must be at fault. So one faulty node in n is found in about log2(n) checks, and what is left at the end is
# checked. Where trust was wrong, no half fails alone: nodes on both sides of the middle are needed. Then both ends are
# drawn in as far as the check goes on failing, and what is between them is thinned out.

Check = Callable[..., bool]
Chosen = tuple[int, ...]

_SUSPICIOUS = 3  # checks that all failed: perhaps the check fails whatever it is given


@dataclasses.dataclass(frozen=True)
class Reduced(Record):
    """What is left of a model that fails a check.

    Attributes:
        model: the smallest part found that fails.
        inputs: what it takes, by name; empty if no inputs were given.
        names: its nodes, in the order they run.
        origins: where each of these comes from.
        nodes: how many these are.
        checks: how often the check was asked.
        whole: how many nodes the model had.
        finished: False if the search ended because no more checks were allowed.
        others: whether the rest of the model fails too, so that more is at fault; None if nobody looked.
        more: the other parts at fault, if all were asked for.
    """

    model: ir.Model
    inputs: Mapping[str, Array]
    names: tuple[str, ...]
    origins: tuple[Origin, ...]
    nodes: int
    checks: int
    whole: int
    finished: bool = True
    others: bool | None = None
    more: tuple[Reduced, ...] = ()

    json_omits = ("model", "inputs")


def reduce(
    model: ir.Model | str | os.PathLike[str],
    fails: Check,
    *,
    inputs: Mapping[str, Array] | Recorded | None = None,
    all_parts: bool = False,
    most_checks: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> Reduced:
    """The smallest part of a model that still fails a check.

    Args:
        model: a model or a file; it stays as it is.
        fails: whether a model fails. It is called with a candidate, which is a model of its own, and, if there are
            `inputs`, with that candidate's inputs by name. `checks` has some that are often needed. A candidate on
            which it raises EngineError counts as passing: that is another fault than the one looked for.
        inputs: the whole model's inputs, or what knows its tensors, if another engine or model says what is right.
        all_parts: look for further parts that fail without the first. It takes a search for each.
        most_checks: end after so many, with the smallest part found until then.
        progress: called with a line for each check.

    Raises:
        InputError: the check passes on the whole model, or the inputs do not fit.
        OptionError: the check fails whatever model it is given.

    Example:
        >>> small = reduce("model.onnx", lambda m, x: np.isnan(run(m, x)).any(), inputs={"x": x})
        >>> small.names, small.checks
        (('node_Div_7',), 9)
    """
    whole = model if isinstance(model, ir.Model) else onnx_files.load(model)
    recorded = Recorded(whole, inputs) if isinstance(inputs, Mapping) else inputs
    own = typed(whole, recorded.engine, recorded.libraries) if recorded else typed(whole, DEFAULT)
    units = Units(own, recorded.knows if recorded else None)
    search = _Search(units, fails, recorded, most_checks, progress or (lambda text: None))
    search.check_whole(whole)
    found = search.parts(all_parts)
    if search.finished and all(search.verdicts.values()) and len(search.verdicts) >= _SUSPICIOUS:
        search.check_trivial(found[0])
    first, *rest = (search.reduced(part) for part in found)
    return dataclasses.replace(first, more=tuple(rest))


class _OutOfChecksError(Exception):
    """No more checks are allowed: the smallest part so far is the answer."""


class _Search:
    """Asks the check about sets of units, none twice, and remembers the smallest that fails."""

    def __init__(
        self,
        units: Units,
        fails: Check,
        recorded: Recorded | None,
        most: int | None,
        progress: Callable[[str], None],
    ) -> None:
        self._units, self._check, self._recorded = units, fails, recorded
        self._most, self._say = most, progress
        self._smallest: Chosen = tuple(range(len(units)))
        self.finished = True
        self._others: bool | None = None
        self.verdicts: dict[Chosen, bool] = {}
        self.checks = 0

    def check_whole(self, model: ir.Model) -> None:
        """The model as it was given: what is not in the units, such as constants, may matter."""
        whole = tuple(range(len(self._units)))
        if not whole:
            raise InputError("the model has no nodes: there is nothing to reduce", next_step="give a model with nodes")
        names = [str(v.name) for v in model.graph.inputs if not v.is_initializer()]
        self.verdicts[whole] = self._ask(model, self._feeds(model, names))
        self._say(f"check 1: the whole model: {'fails' if self.verdicts[whole] else 'passes'}")
        if not self.verdicts[whole]:
            raise InputError(
                "the check passes on the whole model: there is nothing to reduce",
                next_step="give the inputs, the engine or the check with which it fails",
            )

    def check_trivial(self, part: Chosen) -> None:
        """A check that fails on a model that only hands its inputs on says nothing about nodes."""
        trivial = _handing_on(self._units.model_of(part))
        if trivial is None:
            return
        feeds = self._feeds(trivial, [str(v.name) for v in trivial.graph.inputs])
        try:
            fails_always = self._ask(trivial, feeds)
        except TorchportError as error:  # it looks at the model closely enough to mind
            self._say(f"check {self.checks}: a model that only hands its inputs on: {error.what}")
            return
        if fails_always:
            raise OptionError(
                "the check fails on every model, even on one that only hands its inputs on",
                next_step="run the check by hand: it may fail for a reason of its own",
            )

    def parts(self, all_parts: bool) -> list[Chosen]:
        """The smallest part that fails, and, if asked for, those in what is left without it."""
        remaining: Chosen = tuple(range(len(self._units)))
        found: list[Chosen] = []
        try:
            while True:
                found.append(self._narrowed(remaining))
                remaining = tuple(i for i in remaining if i not in found[-1])
                if not all_parts or not remaining or not self.fails(remaining):
                    self._others = len(found) > 1 if all_parts else None
                    return found
                self._smallest = remaining
        except _OutOfChecksError:
            self.finished = False
            return [*found, self._smallest] if self._smallest not in found else found

    def fails(self, chosen: Chosen) -> bool:
        if chosen not in self.verdicts:
            if self._most is not None and self.checks >= self._most:
                raise _OutOfChecksError
            try:
                self.verdicts[chosen] = self._ask(*self.candidate(chosen))
            except EngineError as error:  # on this part, or on the way to what it takes
                self.verdicts[chosen] = False
                self._say(f"check {self.checks}: another fault, not counted: {error.what}")
            word = "fails" if self.verdicts[chosen] else "passes"
            self._say(f"check {self.checks}: {len(chosen)} of {len(self._units)} steps: {word}")
        if self.verdicts[chosen] and len(chosen) < len(self._smallest):
            self._smallest = chosen
        return self.verdicts[chosen]

    def candidate(self, chosen: Chosen) -> tuple[ir.Model, dict[str, Array]]:
        model = self._units.model_of(chosen)
        feeds = self._feeds(model, [str(v.name) for v in model.graph.inputs if not v.is_initializer()])
        fit(model, feeds)
        return model, feeds

    def reduced(self, part: Chosen) -> Reduced:
        model, feeds = self.candidate(part)
        nodes = list(model.graph)
        return Reduced(
            model=model,
            inputs=feeds,
            names=tuple(str(n.name or n.outputs[0].name) for n in nodes),
            origins=tuple(origin_of(n) for n in nodes),
            nodes=len(nodes),
            checks=self.checks,
            whole=len(self._units.model.graph),
            finished=self.finished,
            others=self._others,
        )

    def _feeds(self, model: ir.Model, names: Sequence[str]) -> dict[str, Array]:
        if self._recorded is None:
            return {}
        dtypes = {str(v.name): v.dtype.numpy().name for v in model.graph.inputs if v.dtype is not None}
        return {n: rounded(a, dtypes.get(n, "")) for n, a in self._recorded.values(names).items()}

    def _ask(self, model: ir.Model, feeds: Mapping[str, Array]) -> bool:
        self.checks += 1
        return bool(self._check(model, feeds) if self._recorded is not None else self._check(model))

    def _narrowed(self, window: Chosen) -> Chosen:
        """The smallest part of a window that fails."""
        trusted = [window]  # windows, each inside the one before; of these only the first was seen to fail
        while len(trusted[-1]) > 1:
            first, second = _halves(trusted[-1])
            trusted = [first] if self.fails(first) else [*trusted, second]
        if len(trusted) == 1 or self.fails(trusted[-1]):
            return trusted[-1]
        good, bad = 0, len(trusted) - 1  # the last that fails is where two halves are at fault together
        while bad - good > 1:
            middle = (good + bad) // 2
            good, bad = (middle, bad) if self.fails(trusted[middle]) else (good, middle)
        return self._thinned(self._drawn_in(trusted[good]))

    def _drawn_in(self, window: Chosen) -> Chosen:
        """The shortest stretch that fails, if neither half of the window does."""
        middle = len(_halves(window)[0])
        passing, end = middle, len(window)
        while end - passing > 1:
            here = (passing + end) // 2
            passing, end = (passing, here) if self.fails(window[:here]) else (here, end)
        begin, passing = 0, middle
        while passing - begin > 1:
            here = (begin + passing) // 2
            begin, passing = (here, passing) if self.fails(window[here:end]) else (begin, here)
        return window[begin:end]

    def _thinned(self, chosen: Chosen) -> Chosen:
        """Without all that can be left out of the middle, large pieces first."""
        size = len(chosen) // 2
        while size:
            before, place = chosen, 0
            while place < len(chosen):
                rest = chosen[:place] + chosen[place + size :]
                if rest and self.fails(rest):
                    chosen = rest
                else:
                    place += size
            size = size if size == 1 and chosen != before else size // 2
        return chosen


def _halves(window: Chosen) -> tuple[Chosen, Chosen]:
    middle = len(window) // 2
    return window[:middle], window[middle:]


def _handing_on(part: ir.Model) -> ir.Model | None:
    """A model with the part's inputs and nothing but an Identity of each."""
    inputs = [ir.Value(name=v.name, shape=v.shape, type=v.type) for v in part.graph.inputs if not v.is_initializer()]
    if not inputs:
        return None
    nodes = [ir.node("Identity", [v], name=f"hand_on_{i}") for i, v in enumerate(inputs)]
    for node, value in zip(nodes, inputs, strict=True):
        given = node.outputs[0]
        given.name, given.shape, given.type = f"{value.name}_handed_on", value.shape, value.type
    opsets = {"": part.graph.opset_imports.get("", 17)}
    graph = ir.Graph(inputs, [n.outputs[0] for n in nodes], nodes=nodes, opset_imports=opsets, name="hand_on")
    return ir.Model(graph, ir_version=part.ir_version)


# A model as a row of units, any of which make a model of their own: what a search for a fault cuts up.
#
# A unit is mostly one node. Nodes stand together in a unit where no cut is possible between them: a sequence runs
# there, or a tensor that the reference does not have.

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
        entering = [str(v.name) for n in inside for v in used_values(n) if self._enters(v, inside)]
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
        if is_constant_node(node):
            return not any(v in self._ends for v in node.outputs)
        if not node.inputs or any(v in self._ends or not self._readers.get(v) for v in node.outputs):
            return False
        return all(map(is_constant, used_values(node)))

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


def _readers(model: ir.Model) -> dict[ir.Value, list[ir.Node]]:
    """Who uses each value; a use inside a branch is one by the node that holds the branch."""
    found: dict[ir.Value, list[ir.Node]] = {}
    for node in model.graph:
        for value in used_values(node):
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
