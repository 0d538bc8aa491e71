"""Compare every tensor of a candidate with the reference's, and find where the error is introduced."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import onnx_ir as ir

from torchport.comparison.divergence import Region, Spread
from torchport.comparison.intermediates import Layered, Slices
from torchport.comparison.pair_onnx import alike
from torchport.comparison.pair_torch import Pair
from torchport.comparison.result import Layer, State
from torchport.editing.extract import cut
from torchport.engines.registry import faults_of
from torchport.engines.session import open_session
from torchport.irtools.metadata import origin_of
from torchport.irtools.names import name_of
from torchport.irtools.traversal import used_values
from torchport.numerics.check import QuickCheck, quick_check
from torchport.numerics.tolerance import Tolerance
from torchport.tensors import Array, numpy_dtype

_HELD = 2  # a slice of the candidate's tensors, and their partners
_USUAL = 8  # times the median error of tensors that agree
_FINE = 5e-7  # a few steps of float32
_ROUNDING = {ir.DataType.FLOAT16: 2e-3, ir.DataType.BFLOAT16: 2e-2}  # of coarser dtypes
_WHOLE = {kind for kind in ir.DataType if not kind.is_floating_point()}  # and texts; they agree exactly or not at all
_SMALL = 3e-4  # no more than that is notable, however much agreeing tensors are off
_CLOSE = 1e-5  # no more than that is no trace of an error
_NOTABLE = 16  # times that is no rounding any more
_OTHER = 0.1  # of the largest number: so far off, it may be another tensor


class Reference(Protocol):
    """The other side of a comparison by layers."""

    def pairs(self, slices: Slices) -> Mapping[str, Pair]:
        """The partners of the candidate's tensors, of those that have one."""
        ...

    def fetch(self, keys: Mapping[str, Any]) -> Mapping[str, Array]:
        """The reference's tensors of these keys, by the candidate's names."""
        ...


@dataclasses.dataclass(frozen=True)
class Layers:
    """What the comparison by layers found.

    Attributes:
        region: where the error is introduced; None if there is none, or nothing tells.
        unlike: the outputs agree and most tensors inside are far from their partners: then these are no evidence.
    """

    layers: tuple[Layer, ...]
    region: Region | None
    pairs: Mapping[str, Pair]
    unlike: bool = False


def look(
    candidate: Layered,
    reference: Reference,
    feeds: Mapping[str, Array],
    *,
    budget: int,
    agree: Sequence[str],
    say: Callable[[str], None] | None = None,
) -> Layers:
    """Compare all tensors, a slice at a time.

    Args:
        candidate: the model whose tensors are looked at.
        reference: what they are held against.
        feeds: the candidate's inputs.
        budget: bytes of tensors to hold at once, the reference's among them.
        agree: outputs of the candidate that were found to agree, whatever their inner partners say.
        say: called with a line for each slice.
    """
    pairs = reference.pairs(Slices(candidate, feeds, budget // _HELD, say))
    graph, ends = candidate.model.graph, set(candidate.outputs)
    unlike = ends <= set(agree) and _mostly_unlike({n: p for n, p in pairs.items() if n not in ends})
    levels = _levels(pairs, candidate.values)
    region, propagated, introduced = (None, set(), set()) if unlike else _where(graph, pairs, ends, set(agree), levels)
    layers = [_layer(v, pairs.get(n), n in agree, v in propagated, introduced) for n, v in candidate.values.items()]
    return Layers(tuple(layers), region, pairs, unlike)


def _mostly_unlike(pairs: Mapping[str, Pair]) -> bool:
    return 2 * sum(not p.check.ok and not p.check.relative <= _OTHER for p in pairs.values()) > len(pairs)


def _where(
    graph: ir.Graph, pairs: Mapping[str, Pair], ends: set[str], agree: set[str], levels: tuple[set[str], float]
) -> tuple[Region | None, set[ir.Value], set[ir.Node]]:
    """Where the error is introduced, the tensors it propagates to, and the nodes that make it."""
    wrong_ends = ends - agree
    if not wrong_ends:
        return _inside(graph, pairs, levels), set(), set()
    sure, notable = levels
    bad = {n for n, p in pairs.items() if not p.check.ok or p.check.relative > notable} - agree
    good = (set(pairs) - bad) | agree
    certain = {n for n in bad if n in pairs and pairs[n].certain} | wrong_ends
    spread = Spread(graph, good, bad | wrong_ends, ends=wrong_ends, sure=sure, certain=certain)
    return spread.first(), spread.propagated, set(spread.introduced())


def _inside(graph: ir.Graph, pairs: Mapping[str, Pair], levels: tuple[set[str], float]) -> Region | None:
    """The outputs agree; the first tensor inside that differs from a partner beyond doubt, if any.

    What is off by little more than rounding is not: before a gate that closes, or a softmax, errors may be larger. Nor
    is one from which something is made that is surely right: then its partner is another tensor.
    """
    sure, notable = levels
    good = {n for n, p in pairs.items() if p.check.ok or p.check.relative <= min(notable, _SMALL)}
    sure = {n for n in sure if pairs[n].check.relative <= _CLOSE}
    for node in graph:
        for name in [str(v.name) for v in node.outputs]:
            if name in pairs and name not in good and pairs[name].certain:
                found = Spread(graph, good, {name}, ends={name}, sure=sure, certain=()).first()
                if found is not None:
                    return found
    return None


def _levels(pairs: Mapping[str, Pair], values: Mapping[str, ir.Value]) -> tuple[set[str], float]:
    """Tensors that agree as closely as most of those that agree do, and the error from which on it is no rounding."""
    kinds = {n: values[n].dtype for n in pairs if n in values}
    errors = sorted(p.check.relative for n, p in pairs.items() if p.check.ok and kinds.get(n) not in _WHOLE)
    usual = errors[len(errors) // 2] if errors else 0.0
    limit = max(_USUAL * usual, _FINE, *(size for kind, size in _ROUNDING.items() if kind in kinds.values()))
    return {n for n, p in pairs.items() if p.check.ok and p.check.relative <= limit}, _NOTABLE * limit


def _layer(value: ir.Value, pair: Pair | None, good: bool, propagated: bool, introduced: set[ir.Node]) -> Layer:
    node = value.producer()
    assert node is not None
    good = good or (pair is not None and pair.check.ok)
    state: State = "agrees" if good else "no partner"
    if node in introduced and not good:
        state = "introduced" if pair is not None else state
    elif propagated:
        state = "propagated"
    elif pair is not None and not good:
        state = "differs"
    domain = f"{node.domain}::" if node.domain else ""
    return Layer(
        str(value.name),
        name_of(node),
        domain + node.op_type,
        origin_of(node),
        pair.partner if pair else "",
        state,
        pair.check if pair else None,
    )


# Each layer by itself: every node gets the reference's tensors, so that errors do not add up.
#
# The candidate is taken apart at every tensor that has a partner: its readers read an input with the reference's
# numbers instead. It stays one model, run slice by slice, not one session a node.

_GIVEN = "__given"


def isolated(
    candidate: Layered,
    reference: Reference,
    pairs: Mapping[str, Pair],
    feeds: Mapping[str, Array],
    *,
    budget: int,
    limits: Callable[[str, str], Tolerance],
    say: Callable[[str], None] | None = None,
) -> dict[str, QuickCheck]:
    """How far off each paired tensor is when what it is made from is the reference's."""
    dtypes = {o.name: o.dtype for o in candidate.session.outputs}
    apart = _taken_apart(candidate.model, {n: dtypes[n] for n in pairs})
    own = {str(v.name): v for n in apart.graph for v in n.outputs}
    found: dict[str, QuickCheck] = {}
    pieces = candidate.slices(feeds, budget // 2, [n for n in candidate.values if n in pairs])
    for number, names in enumerate(pieces, start=1):
        (say or (lambda text: None))(f"isolating {len(pairs)} layers, slice {number} of {len(pieces)}")
        needed = _needed(own[n] for n in names)
        given = [n.removesuffix(_GIVEN) for n in needed if n.endswith(_GIVEN)]
        theirs = reference.fetch({n: pairs[n].key for n in dict.fromkeys([*given, *names])})
        arrays = {n + _GIVEN: theirs[n].astype(numpy_dtype(dtypes[n]), copy=False) for n in given}
        arrays |= {n: feeds[n] for n in needed if not n.endswith(_GIVEN)}
        session = open_session(cut(apart, needed, names), candidate.session.engine, libraries=candidate.libraries)
        with faults_of(candidate.session.engine):
            answers = session.run(arrays)
        for name, array in answers.items():
            limit = limits(theirs[name].dtype.name, array.dtype.name)
            found[name] = quick_check(*alike(theirs[name], array), limit)
    return found


def _taken_apart(model: ir.Model, dtypes: Mapping[str, str]) -> ir.Model:
    """A copy in which everyone who read one of these tensors reads an input instead.

    It states no shapes: those the model was exported with are wrong behind a fault that changes one, and an engine
    that believes them fails.
    """
    copy = model.clone()
    for node in ir.traversal.RecursiveGraphIterator(copy.graph):
        for value in node.outputs:
            value.shape = None
    for node in list(copy.graph):
        for value in node.outputs:
            if str(value.name) not in dtypes:
                continue
            dtype = ir.DataType.from_numpy(numpy_dtype(dtypes[str(value.name)]))
            given = ir.Value(name=f"{value.name}{_GIVEN}", type=ir.TensorType(dtype))
            for use in list(value.uses()):
                use.node.replace_input_with(use.idx, given)
            copy.graph.inputs.append(given)
    return copy


def _needed(values: Iterable[ir.Value]) -> list[str]:
    """The inputs of the graph that these tensors are made from."""
    waiting = list(values)
    seen: set[ir.Value] = set()
    inputs: dict[str, None] = {}
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        producer = value.producer()
        if producer is not None:
            waiting += used_values(producer)
        elif value.is_graph_input() and not value.is_initializer():
            inputs[str(value.name)] = None
    return list(inputs)
