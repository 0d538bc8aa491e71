"""Make a dimension that a model was exported with dynamic, and let everything in the graph follow.

An export at a fixed size bakes that size into constants: reshape targets, slice ends, initial states, class tokens.
The graph is walked at the old size and at another one side by side. Where a constant fits the old size only, the
walk knows which axis of which value holds the dimension, and has the constant follow it. Nothing is guessed in silence:
a node that cannot follow is named, and the result is walked again at two further sizes before the model is touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import onnx_ir as ir

from torchport.editing.make_dynamic.operator_rules import MENDERS
from torchport.editing.make_dynamic.propagation import Walk
from torchport.editing.make_dynamic.value_pair import Fact, Picks, Probe
from torchport.errors import InputError
from torchport.irtools.dims import Dims, input_dims, plain_dims
from torchport.irtools.inference import Inference, contradiction

Place = tuple[str, int]

_TRIES = 100  # ways of reading the reshapes of a model
_PRIMES = (53, 59, 61, 67, 71, 73, 79)
_UNKNOWN = 32  # the size to walk with where the model does not say one


def free(model: ir.Model, places: Sequence[Place], name: str) -> int:
    """Make axes of inputs, which have one fixed size, a dynamic dimension called `name`.

    Args:
        model: changed in place; as it was if it is refused.
        places: inputs and axes; those that must be of the same size together.
        name: of the dimension. One that the model has already is the same size then.

    Returns:
        How many inputs and nodes were changed.

    Raises:
        InputError: a node cannot follow; it is named with where it comes from.

    Example:
        >>> model = tp.graph.load("exported_at_batch_1.onnx")
        >>> tp.graph.set_dim(model, "image:0", "batch")
    """
    known = Inference(model)
    first, second, picks = _found(model, _probes(model, places, name), known)
    walk = Walk(model, first, MENDERS, known, Picks(list(picks.taken)))
    walk.run()
    _tidy(walk)
    before, after = _checked(model, first, second, known)
    _state_shapes(model, before, after)
    return len(places) + len(walk.mended)


def _found(model: ir.Model, pairs: list[tuple[Probe, Probe]], known: Inference) -> tuple[Probe, Probe, Picks]:
    """The sizes that the model follows, and how its reshapes are read for it."""
    refusals: list[InputError] = []
    for first, second in pairs:
        try:
            return first, second, _tried(model, first, second, known)
        except InputError as error:
            refusals.append(error)
    raise refusals[0]


def _probes(model: ir.Model, places: Sequence[Place], name: str) -> list[tuple[Probe, Probe]]:
    """Pairs of sizes to walk with: large ones, that nothing else has by chance; then small ones, as tables end."""
    inputs = {str(v.name): v for v in model.graph.inputs}
    sizes = {inputs[n].shape[a] for n, a in places}  # type: ignore[index]  # their axes were looked up in it
    numbers = {s for s in sizes if isinstance(s, int)}
    if len(numbers) > 1:
        raise InputError(
            f"{', '.join(f'{n}:{a}' for n, a in places)} are of different sizes: {sorted(numbers)}",
            next_step="give axes that are of the same size",
        )
    was = numbers.pop() if numbers else _UNKNOWN
    others = _others(model, places, name)
    taken = {
        d for g in model.graphs() for v in _values(g) if v.shape is not None for d in v.shape if isinstance(d, int)
    }
    good = [p for p in _PRIMES if was * p not in taken]
    pairs = [(was * good[0], was * good[1] + 1), *([(was * 2, was + 1)] if was > 1 else [])]
    return [(Probe(tuple(places), name, was, a, others), Probe(tuple(places), name, was, b, others)) for a, b in pairs]


def _others(model: ir.Model, places: Sequence[Place], name: str) -> dict[str, int]:
    """A size for each dimension that is dynamic already: a multiple of 32, as strides like them."""
    found: list[str] = []
    dims = Dims.of(model)
    named = input_dims((str(v.name), plain_dims(v.shape or ())) for v in model.graph.inputs)
    for place, text in named.items():
        found += sorted(dims.symbols(text)) if place not in places else []
    names = [n for n in dict.fromkeys(found) if n != name]
    return {n: 32 * (2 * k + 5) for k, n in enumerate(names)}


def _tried(model: ir.Model, first: Probe, second: Probe, known: Inference) -> Picks:
    """The ways to read the model's reshapes that work, found on copies of its graph."""
    picks: Picks | None = Picks()
    refusals: list[InputError] = []
    sound = contradiction(model) is None  # else there is nothing to hold against the change
    for _ in range(_TRIES):
        assert picks is not None
        trial = model.clone()
        try:
            walk = Walk(trial, first, MENDERS, known, picks)
            walk.run()
            _tidy(walk)
            _state_shapes(trial, *_checked(trial, first, second, known))
            if sound:
                _check_sound(trial, first)
            return picks
        except InputError as error:
            refusals.append(error)
        picks = picks.next()
        if picks is None:
            break
    raise refusals[0]


def _checked(model: ir.Model, first: Probe, second: Probe, known: Inference) -> tuple[Walk, Walk]:
    """The changed model walked again, with nothing mended: at the size it was changed for, and at another."""
    before = Walk(model, first, MENDERS, known)
    before.run()
    after = Walk(model, second, MENDERS, known)
    try:
        after.run()
    except InputError:  # some sizes must be multiples, as with strides
        now = second.now - 1 if second.now > 2 * second.was else 3 * second.was
        aligned = Probe(second.places, second.name, second.was, now, second.others)
        after = Walk(model, aligned, MENDERS, known)
        after.run()
    return before, after


def _check_sound(model: ir.Model, probe: Probe) -> None:
    wrong = contradiction(model)
    if wrong is not None:
        raise InputError(
            f"with '{probe.name}' dynamic the shapes do not agree: {wrong}",
            next_step="export the model with this dimension dynamic",
        )


# --- afterwards -------------------------------------------------------------------------------------------------------


def _tidy(walk: Walk) -> None:
    """Take out the constants nobody reads any more."""
    waiting = list(walk.replaced)
    while waiting:
        value = waiting.pop()
        if value.uses() or value.is_graph_output() or value.is_graph_input():
            continue
        node = value.producer()
        if node is not None and node.graph is not None:
            if any(v.uses() or v.is_graph_output() for v in node.outputs):
                continue
            waiting += [v for v in node.inputs if v is not None]
            node.graph.remove(node, safe=True)
        elif value.is_initializer() and value.graph is not None and value.name:
            value.graph.initializers.pop(value.name, None)


def _state_shapes(model: ir.Model, before: Walk, after: Walk) -> None:
    """Write the shapes that were found into every value that holds the dimension."""
    functions = {id(f.graph) for f in model.functions.values()}
    for graph in model.graphs():
        for value in _values(graph):
            facts = before.facts.get(value), after.facts.get(value)
            if facts[0] is None or facts[1] is None or not (facts[0].held or value.shape is None):
                continue
            element = facts[0].old.tensor_type.elem_type
            if value.type is None and element:
                value.dtype = ir.DataType(element)
            if id(graph) in functions or value.type is None:
                value.shape = None  # another call may have it otherwise
            else:
                value.shape = _shape(value, facts[0], facts[1], before.probe, after.probe)


def _shape(value: ir.Value, one: Fact, two: Fact, first: Probe, second: Probe) -> ir.Shape | None:
    if one.was is None or one.now is None or two.now is None or not len(one.was) == len(one.now) == len(two.now):
        return None
    stated = (
        list(value.shape) if value.shape is not None and len(value.shape) == len(one.was) else [None] * len(one.was)
    )
    columns = zip(one.was, one.now, two.now, stated, strict=True)
    return ir.Shape([_dim(a, b, c, d, first, second) for a, b, c, d in columns])


def _dim(
    was: int | None,
    now: int | None,
    then: int | None,
    stated: int | ir.SymbolicDim | None,
    first: Probe,
    second: Probe,
) -> int | str | ir.SymbolicDim | None:
    """The name or the expression of a dimension whose size is known at three sizes."""
    if was is None or now is None or then is None:
        return None
    if was == now == then:
        return stated if stated is not None else (None if first.others else was)
    if (was, now, then) == (first.was, first.now, second.now):
        return first.name
    slope = Fraction(now - was, first.now - first.was)
    rest = was - slope * first.was
    if first.others or slope.denominator != 1 or slope < 1 or slope * second.now + rest != then:
        return None
    shown = first.name if slope == 1 else f"{slope}*{first.name}"
    return shown if rest == 0 else f"{shown} {'+' if rest > 0 else '-'} {abs(rest)}"


def _values(graph: ir.Graph | ir.Function) -> list[ir.Value]:
    return [*graph.inputs, *(v for node in graph for v in node.outputs)]
