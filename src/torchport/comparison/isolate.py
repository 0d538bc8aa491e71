"""Each layer by itself: give every node the reference's tensors, so that errors do not add up on the way.

The candidate is taken apart at every tensor that has a partner: who used the tensor now reads an input of the same
numbers from the reference. It stays one model, run slice by slice, not one session a node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import onnx_ir as ir

from torchport.comparison.intermediates import Layered
from torchport.comparison.layer_scan import Reference
from torchport.comparison.pair_onnx import alike
from torchport.comparison.pair_torch import Pair
from torchport.editing.extract import cut
from torchport.engines.registry import faults_of
from torchport.engines.session import open_session
from torchport.irtools.traversal import used_values
from torchport.numerics.check import QuickCheck, quick_check
from torchport.numerics.tolerance import Tolerance
from torchport.tensors import Array, numpy_dtype

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
