"""Extract the part of a model between tensors, name the inputs it lacks, and expose inner tensors."""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import os
from collections import deque
from collections.abc import Iterable, Sequence

import onnx_ir as ir

from torchport.errors import InputError, did_you_mean
from torchport.files.onnx_files import ModelLike, as_model, load_between
from torchport.irtools.inference import UNINFERABLE, infer_missing
from torchport.irtools.metadata import MODULE, PROOF, UNPROVEN
from torchport.irtools.names import Names, check_owned
from torchport.irtools.node_reader import is_constant
from torchport.irtools.traversal import used_values
from torchport.process import silence


def without_unused_inputs(model: ir.Model) -> ir.Model:
    """The same model object, without inputs nothing uses: a cut has all that it was offered."""
    ends = set(model.graph.outputs)
    model.graph.inputs[:] = [v for v in model.graph.inputs if v.uses() or v in ends]
    return model


# Cut a part out of a model: what leads from some tensors to others.
#
# The part has the model's weights, not copies of them, and its own graph: the model stays as it was.

Place = str | ir.Node | ir.Value
Places = Place | Sequence[Place]


def cut(
    model: ModelLike,
    inputs: Places = (),
    outputs: Places = (),
    *,
    module: str | None = None,
    complete: bool = False,
) -> ir.Model:
    """The part of a model between some of its tensors.

    Args:
        model: a model or a file.
        inputs: tensors to begin at; or nodes, whose inputs are meant; or their names. None for the model's own inputs.
        outputs: tensors to end at; or nodes, whose outputs are meant; or their names. None for the model's own outputs.
        module: instead of the two, a module of the PyTorch model (``encoder.layer.3``): what goes in and comes out.
        complete: add inputs that are missing instead of refusing.

    Raises:
        InputError: a name is unknown, or the inputs do not cover what the outputs need; it names what is missing, the
            way it is needed, and the smallest set of inputs that would do.

    Example:
        >>> part = tp.graph.cut("model.onnx", inputs=["relu_1"], outputs=["logits"])
        >>> tp.graph.save(part, "part.onnx")
    """
    inputs, outputs = listed(inputs), listed(outputs)
    whole = _opened(model, inputs, outputs, module)
    names = Names(whole)
    if module is not None:
        if inputs or outputs:
            raise InputError(
                "a cut is by module or by tensors, not both", next_step="give either modules or inputs and outputs"
            )
        begin, end = _around(whole, module)
    else:
        begin, end = _begin(whole, names, inputs), _end(whole, names, outputs)
    needs = missing_inputs(begin, end, [v for v in whole.graph.inputs if not v.is_initializer()])
    if needs.missing and not complete and inputs:
        raise _uncovered(needs, begin)
    if needs.missing:
        begin = [*begin, *needs.smallest]
    _know_types(whole, [*begin, *end])
    return _part(whole, begin, end)


def listed(given: Places) -> list[Place]:
    """Return tensors and nodes as a list, also where only one is given."""
    return [given] if isinstance(given, (str, ir.Node, ir.Value)) else list(given)


def _opened(model: ModelLike, inputs: list[Place], outputs: list[Place], module: str | None) -> ir.Model:
    """The model; of a file as much as the part can need: which nodes are a module's, only all can tell."""
    begin, end = ([one for one in places if isinstance(one, str)] for places in (inputs, outputs))
    if isinstance(model, (str, os.PathLike)) and module is None and len(begin + end) == len(inputs + outputs):
        return load_between(model, begin, end)
    whole = as_model(model)
    check_owned(whole, *(one for one in (*inputs, *outputs) if not isinstance(one, str)))
    return whole


def _know_types(model: ir.Model, values: list[ir.Value]) -> None:
    """Inputs and outputs must say their types: inferred where the file does not."""
    if all(v.type is not None for v in values):
        return
    with silence(), contextlib.suppress(*UNINFERABLE):
        infer_missing(model)
    for value in values:
        if value.type is None:
            raise InputError(
                f"nothing tells the type of '{value.name}', which an input or output must say",
                next_step="cut at a tensor before or after it",
            )


def _begin(model: ir.Model, names: Names, given: list[Place]) -> list[ir.Value]:
    if not given:
        return [v for v in model.graph.inputs if not v.is_initializer()]
    found: list[ir.Value] = []
    for one in (_resolved(names, place) for place in given):
        found += [one] if isinstance(one, ir.Value) else [v for v in used_values(one) if not is_constant(v)]
    return list(dict.fromkeys(found))


def _end(model: ir.Model, names: Names, given: list[Place]) -> list[ir.Value]:
    if not given:
        return list(model.graph.outputs)
    found: list[ir.Value] = []
    for one in (_resolved(names, place) for place in given):
        found += [one] if isinstance(one, ir.Value) else [v for v in one.outputs if v.name]
    return list(dict.fromkeys(found))


def _resolved(names: Names, place: Place) -> ir.Node | ir.Value:
    """Return the node or value of the main graph; a tensor's name goes before a node's."""
    name = place if isinstance(place, str) else str(place.name)
    if isinstance(place, str):
        found = names.nodes.get(name) if name not in names.values else None
        return found if found is not None else names.value(name)
    if isinstance(place, ir.Node) and place.graph is names.graph:
        return place
    if isinstance(place, ir.Value) and place in names.values.values():
        return place
    raise names.unknown(name, "node" if isinstance(place, ir.Node) else "tensor of the main graph", ())


def _around(model: ir.Model, path: str) -> tuple[list[ir.Value], list[ir.Value]]:
    """What goes into a module's nodes from outside, and what others use of theirs."""
    nodes = [n for n in model.graph if _belongs(n.metadata_props.get(MODULE, ""), path)]
    if not nodes:
        known = {n.metadata_props.get(MODULE, "") for n in model.graph} - {""}
        raise _unknown_module(path, known)
    inside = set(nodes)
    entering = [v for n in nodes for v in used_values(n) if v.producer() not in inside and not is_constant(v)]
    ends = set(model.graph.outputs)
    users: dict[ir.Value, bool] = {}
    for node in model.graph:
        if node not in inside:
            users.update(dict.fromkeys(used_values(node), True))
    leaving = [v for n in nodes for v in n.outputs if v in ends or v in users]
    return list(dict.fromkeys(entering)), list(dict.fromkeys(leaving))


def _belongs(module: str, path: str) -> bool:
    return module == path or module.startswith(f"{path}.")


def _unknown_module(path: str, known: set[str]) -> InputError:

    if not known:
        return InputError(
            "the model does not say which modules its nodes come from",
            next_step="cut by tensors, or export it with torchport, which writes them down",
        )
    every = {".".join(name.split(".")[:n]) for name in known for n in range(1, name.count(".") + 2)}
    hint = did_you_mean(path, every, f"for example {', '.join(sorted(every)[:5])}", cutoff=0.4)
    return InputError(f"no node of the model comes from a module '{path}'", next_step=hint)


def _uncovered(needs: Need, begin: Iterable[ir.Value]) -> InputError:
    ways = "\n       ".join(f"'{v.name}': {' → '.join(way)}" for v, way in needs.missing.items())
    whole = ",".join(str(v.name) for v in (*begin, *needs.smallest))
    return InputError(
        f"the inputs do not cover what the outputs need: {', '.join(repr(v.name) for v in needs.missing)} missing",
        where=ways,
        next_step=f"the smallest set that would do: {whole} (--complete takes it)",
    )


def _part(whole: ir.Model, begin: list[ir.Value], end: list[ir.Value]) -> ir.Model:
    nodes, constants = _between(whole, begin, end)
    _check_not_empty(nodes, begin, end)
    view = ir.GraphView(
        begin,
        end,
        nodes=nodes,
        initializers=[v for v in constants if v not in begin],
        opset_imports=whole.graph.opset_imports,
        name=whole.graph.name,
        doc_string=whole.graph.doc_string,
        metadata_props=dict(whole.graph.metadata_props),
    )
    graph = view.clone()
    used = {n.op_identifier() for n in ir.traversal.RecursiveGraphIterator(graph)}
    functions = _functions(whole, used)
    part = ir.Model(
        graph,
        ir_version=whole.ir_version,
        producer_name=whole.producer_name,
        producer_version=whole.producer_version,
        domain=whole.domain,
        model_version=whole.model_version,
        doc_string=whole.doc_string,
        functions=[whole.functions[i].clone() for i in functions],
    )
    story = {k: v for k, v in whole.metadata_props.items() if k not in (PROOF, UNPROVEN)}
    part.metadata_props.update(story)  # what was proven was proven of the whole
    return part


def _between(
    whole: ir.Model, begin: Iterable[ir.Value], end: Iterable[ir.Value]
) -> tuple[list[ir.Node], list[ir.Value]]:
    """The nodes that lead to the end, in order, and the weights they use."""
    seen = set(begin)
    waiting = [v for v in end if v not in seen]
    nodes: set[ir.Node] = set()
    constants: dict[ir.Value, None] = {}
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        if value.is_initializer():
            constants[value] = None
        producer = value.producer()
        if producer is not None and producer not in nodes:
            nodes.add(producer)
            waiting += [v for v in used_values(producer) if v not in seen]
    return [n for n in whole.graph if n in nodes], list(constants)


def _check_not_empty(nodes: list[ir.Node], begin: list[ir.Value], end: list[ir.Value]) -> None:
    if not end:
        raise InputError("the model has no outputs to end at", next_step="name a tensor with --to")
    both = [v for v in end if v in begin or v.is_graph_input()]
    if both and not nodes:
        raise InputError(
            f"nothing is between them: '{both[0].name}' is an input and an output",
            next_step="name inputs that come before the outputs",
        )


def _functions(whole: ir.Model, used: set[ir.OperatorIdentifier]) -> list[ir.OperatorIdentifier]:
    """Local functions that are used, and those that they use."""
    found: dict[ir.OperatorIdentifier, None] = {}
    waiting = [i for i in whole.functions if i in used]
    while waiting:
        identifier = waiting.pop()
        if identifier in found:
            continue
        found[identifier] = None
        inner = {n.op_identifier() for n in ir.traversal.RecursiveGraphIterator(whole.functions[identifier].graph)}
        waiting += [i for i in whole.functions if i in inner]
    return [i for i in whole.functions if i in found]


# Which inputs a part of a graph lacks, and the fewest tensors that would do instead.
#
# The fewest tensors that part the model's inputs from the part's outputs are a smallest vertex cut. Of the smallest the
# one nearest to the outputs is taken, so that the part stays small; tensors that depend on the given inputs are left
# out, so that those keep their use.

_LONGEST = 6  # names of a way that are shown


@dataclasses.dataclass(frozen=True)
class Need:
    """What is missing, each with the way by which it is needed, and the fewest tensors that would do."""

    missing: dict[ir.Value, list[str]]
    smallest: list[ir.Value]


def missing_inputs(begin: Sequence[ir.Value], end: Sequence[ir.Value], inputs: Iterable[ir.Value]) -> Need:
    """What the end needs beside the beginning."""
    given = set(begin)
    after, sources = _needed(given, end)
    wanted = set(inputs)
    missing = [v for v in sources if v in wanted]
    if not missing:
        return Need({}, [])
    ways = {v: _way(v, after) for v in missing}
    below = _below(given, after)
    return Need(ways, _smallest(missing, after, below, set(end)))


def _needed(given: set[ir.Value], end: Sequence[ir.Value]) -> tuple[dict[ir.Value, list[ir.Value]], list[ir.Value]]:
    """For each value on the way to the end those computed from it, and the values that nothing computes."""
    after: dict[ir.Value, list[ir.Value]] = {v: [] for v in end}
    sources: list[ir.Value] = []
    waiting = list(end)
    seen: set[ir.Value] = set()
    while waiting:
        value = waiting.pop()
        if value in seen or value in given:
            continue
        seen.add(value)
        producer = value.producer()
        if producer is None:
            if not value.is_initializer():
                sources.append(value)
            continue
        for used in used_values(producer):
            after.setdefault(used, []).append(value)
            waiting.append(used)
    return after, sources


def _way(value: ir.Value, after: dict[ir.Value, list[ir.Value]]) -> list[str]:
    """One shortest way from a value to the end, as names; a long one without its middle."""
    before: dict[ir.Value, ir.Value | None] = {value: None}
    waiting = deque([value])
    last = value
    while waiting:
        last = waiting.popleft()
        if not after.get(last):
            break
        for following in after[last]:
            if following not in before:
                before[following] = last
                waiting.append(following)
    way: list[str] = []
    step: ir.Value | None = last
    while step is not None:
        way.append(str(step.name))
        step = before[step]
    way.reverse()
    half = _LONGEST // 2
    return way if len(way) <= _LONGEST else [*way[:half], f"… {len(way) - 2 * half} more …", *way[-half:]]


def _below(given: set[ir.Value], after: dict[ir.Value, list[ir.Value]]) -> set[ir.Value]:
    """Values that depend on the given ones."""
    found: set[ir.Value] = set()
    waiting = [v for g in given for v in after.get(g, ())]
    while waiting:
        value = waiting.pop()
        if value not in found:
            found.add(value)
            waiting += after.get(value, ())
    return found


def _smallest(
    missing: list[ir.Value], after: dict[ir.Value, list[ir.Value]], below: set[ir.Value], end: set[ir.Value]
) -> list[ir.Value]:
    """A smallest vertex cut between what is missing and the rest: a value is an edge from its near to its far side.

    Of several the one nearest to the end: networkx gives the one nearest to where the flow goes.
    """
    import networkx  # type: ignore[import-untyped,unused-ignore]

    graph = networkx.DiGraph()
    for value, following in after.items():
        if value in below:
            continue
        graph.add_edge((value, "near"), (value, "far"), capacity=1 if value not in end else len(missing) + 1)
        for user in following:
            graph.add_edge((value, "far"), "end" if user in below else (user, "near"))
        if value in end:
            graph.add_edge((value, "far"), "end")
    for value in missing:
        graph.add_edge("inputs", (value, "near"))
    _, (near, far) = networkx.minimum_cut(graph, "inputs", "end")
    found = [v for v in after if v not in below and (v, "near") in near and (v, "far") in far]
    return sorted(found, key=lambda v: str(v.name)) or missing


# Make tensors inside a model outputs of it, to look at their values.


def expose(model: ModelLike, tensors: Places = "*") -> ir.Model:
    """A copy of the model with more outputs: these tensors of its main graph.

    Args:
        model: a model or a file.
        tensors: tensors, or nodes, whose outputs are meant; names, patterns (``relu_*``), or modules of the PyTorch
            model (``encoder.layer.3``, ``encoder.*``): what their nodes give. ``*`` for all.

    Raises:
        InputError: nothing in the model is called so.
    """
    whole = as_model(model)
    places = listed(tensors)
    check_owned(whole, *(one for one in places if not isinstance(one, str)))
    copy = whole.clone()
    own, names = Names(whole), Names(copy)
    there = set(copy.graph.outputs)
    for place in places:
        if isinstance(place, str):
            found = _matching(copy, place)
        else:
            found = [names.value(str(v.name)) for v in _end(whole, own, [place])]
        if not found:
            raise names.unknown(str(place), "tensor or module", names.values)
        for value in found:
            if value not in there:
                there.add(value)
                copy.graph.outputs.append(value)
    return copy


def _matching(model: ir.Model, pattern: str) -> list[ir.Value]:
    found: list[ir.Value] = []
    for node in model.graph:
        module = node.metadata_props.get(MODULE, "")
        whole = bool(module) and (fnmatch.fnmatchcase(module, pattern) or module.startswith(f"{pattern}."))
        found += [v for v in node.outputs if v.name and (whole or fnmatch.fnmatchcase(v.name, pattern))]
    return [v for v in found if v.dtype is not None or v.type is None]
