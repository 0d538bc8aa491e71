"""Inline local functions, and outline nodes as a function, also where the same nodes repeat."""

from __future__ import annotations

import fnmatch
import graphlib
import itertools
from collections.abc import Sequence

import onnx_ir as ir

from torchport.editing.fragment import Fragment, operator
from torchport.editing.patterns import matches
from torchport.editing.selection import Nodes, chosen_nodes
from torchport.editing.splice import Grafting
from torchport.editing.transaction import in_place
from torchport.errors import InputError, did_you_mean
from torchport.irtools import node_reader
from torchport.irtools.inference import infer_missing
from torchport.irtools.metadata import MODULE
from torchport.irtools.names import where
from torchport.irtools.schemas import schema_even_if_deprecated
from torchport.irtools.traversal import (
    Match,
    Scope,
    all_values,
    current,
    in_order,
    scoped_nodes,
    subgraphs,
    used_values,
)

# --- inline -----------------------------------------------------------------------------------------------------------


@in_place
def inline(model: ir.Model, name: str | ir.Function | None = None) -> int:
    """Put the nodes of local functions in the place of their calls, in the graph, its branches and other functions.

    onnx-ir has a pass for this. It takes names that a branch has already, and renames an input that a function gives
    back as it is.

    Args:
        model: changed in place, or not at all.
        name: a function of the model or its name, ``my::Block`` or ``Block``; None for all.

    Returns:
        How many calls were written out.

    Raises:
        InputError: there is no such function, functions call each other in a circle, or one is of another opset and has
            operators that changed between the two.

    Example:
        >>> tp.graph.inline(model, "my::Block")
    """
    infer_missing(model)
    chosen = _chosen_functions(model, name)
    count = 0
    for identifier in _callees_first(model):
        if identifier in chosen:
            count += _write_out(model, model.functions[identifier], without=chosen)
    for identifier in chosen:
        del model.functions[identifier]
    Grafting(model).finish()
    return count


def _chosen_functions(model: ir.Model, name: str | ir.Function | None) -> set[ir.OperatorIdentifier]:
    if name is None:
        return set(model.functions)
    if isinstance(name, ir.Function):
        if not any(name is own for own in model.functions.values()):
            raise InputError(
                f"the function {name.domain}::{name.name} is not of this model", next_step="give one of this model"
            )
        return {name.identifier()}
    domain, _, kind = name.rpartition("::")
    found = {i for i in model.functions if i[1] == kind and (not domain or i[0] == domain)}
    if not found:
        known = [f"{i[0]}::{i[1]}" for i in model.functions]
        hint = did_you_mean(name, known, f"it has {', '.join(known) or 'none'}", cutoff=0.3)
        raise InputError(f"the model has no function '{name}'", next_step=hint)
    return found


def _callees_first(model: ir.Model) -> list[ir.OperatorIdentifier]:
    calls = {
        i: {n.op_identifier() for n in ir.traversal.RecursiveGraphIterator(f)} & set(model.functions)
        for i, f in model.functions.items()
    }
    try:
        return list(graphlib.TopologicalSorter(calls).static_order())
    except graphlib.CycleError as error:
        way = " → ".join(f"{i[0]}::{i[1]}" for i in error.args[1])
        raise InputError(f"functions call each other in a circle: {way}", next_step="mend the model") from error


def _write_out(model: ir.Model, function: ir.Function, *, without: set[ir.OperatorIdentifier]) -> int:
    """Write out all calls of a function; those in functions that go too are done, but do not count."""
    grafting = Grafting(model)
    fragment = Fragment(function.graph, f"the function {function.domain}::{function.name}")
    count = 0
    for scope, node in scoped_nodes(model):
        if node.op_identifier() != function.identifier() or node.graph is None:
            continue
        _check_opset(function, scope)
        given = [*node.inputs, *[None] * (len(function.inputs) - len(node.inputs))]
        defaults = {k: a for k, a in function.attributes.items() if a.value is not None}
        match = Match((node,), {f"#{i}": v for i, v in enumerate(given)}, tuple(node.outputs), {}, scope)
        base = str(node.name or node.outputs[0].name)
        graft = grafting.copy(fragment, given, {**defaults, **node.attributes}, base, scope)
        grafting.put(match, graft)
        count += not (isinstance(scope, ir.Function) and scope.identifier() in without)
    return count


def _check_opset(function: ir.Function, scope: Scope) -> None:
    """Refuse to read nodes by another opset than they were written for, where that makes a difference."""
    own, other = function.opset_imports.get(""), scope.opset_imports.get("")
    for node in ir.traversal.RecursiveGraphIterator(function):
        if own is None or other in (None, own) or node.domain:
            continue
        then, now = (schema_even_if_deprecated(node.op_type, opset) for opset in (own, other))
        if then is None or now is None or then.since_version != now.since_version:
            raise InputError(
                f"the function {function.domain}::{function.name} is of opset {own}, its caller of {other}, and "
                f"{node.op_type} changed between them",
                next_step=f"bring all to one opset first: --set-opset {max(own, other)} (tp.graph.set_opset)",
            )
    for domain, version in function.opset_imports.items():
        scope.opset_imports.setdefault(domain, version)


# --- outline ----------------------------------------------------------------------------------------------------------


@in_place
def outline(model: ir.Model, nodes: Nodes, name: str) -> int:
    """Make a local function of some nodes, and call it there and wherever else the same nodes are.

    Weights become inputs of the function, so layers of one build share it.

    Args:
        model: changed in place, or not at all.
        nodes: nodes or their names, a pattern of names (``block0_*``), or a module of the PyTorch model,
            ``module:encoder.layer.0``; ``module:encoder.layer.*`` is every layer, which must all be alike.
        name: of the function, ``my::Layer``.

    Returns:
        How many calls there are now.

    Raises:
        InputError: there are no such nodes, something outside leads from them back in, or the modules differ.

    Example:
        >>> tp.graph.outline(model, "module:encoder.layer.*", "my::Layer")
    """
    infer_missing(model)
    domain, kind = _new_name(model, name)
    groups = _groups(model, nodes)
    part, function, others = alike(model, groups, domain, kind)
    places = [part, *others]
    roots = [_root(place.nodes) for place in places]
    if len(places) > 1:
        _forget_whose(function, roots[0])
    model.functions[function.identifier()] = function
    grafting = Grafting(model)
    call = operator(f"{domain}::{kind}", len(function.inputs), len(function.outputs), {})
    moved: dict[ir.Value, ir.Value] = {}
    for place, root in zip(places, roots, strict=True):
        moved.update(_call(grafting, call, current(place, moved), root))
    grafting.finish()
    return len(places)


def _new_name(model: ir.Model, name: str) -> tuple[str, str]:
    domain, _, kind = name.rpartition("::")
    domain = domain or "local"
    if not kind.isidentifier() or domain == "ai.onnx":
        raise InputError(f"a function cannot be called '{name}'", next_step="give it a domain and a name: my::Layer")
    if (domain, kind, "") in model.functions:
        raise InputError(f"the model has a function '{domain}::{kind}' already", next_step="choose another name")
    return domain, kind


def _groups(model: ir.Model, nodes: Nodes) -> dict[str, list[ir.Node]]:
    """The nodes of each place that was named."""
    wanted = [nodes] if isinstance(nodes, (str, ir.Node)) else list(nodes)
    modules = [text for text in wanted if isinstance(text, str) and text.startswith("module:")]
    if wanted and len(modules) == len(wanted):
        found: dict[str, list[ir.Node]] = {}
        for text in modules:
            found.update(_modules(model, text.removeprefix("module:")))
        return found
    chosen = chosen_nodes(model, wanted) if wanted else []
    if len({id(n.graph) for n in chosen}) != 1:
        raise InputError(
            "the nodes are not all in one graph" if chosen else "no nodes were named",
            next_step="choose nodes of one graph, branch or function",
        )
    return {"the nodes": list(in_order(chosen))}


def _modules(model: ir.Model, pattern: str) -> dict[str, list[ir.Node]]:
    """Nodes of the main graph by the module that fits: ``encoder.layer.*`` makes a group of each layer."""
    depth = pattern.count(".") + 1
    found: dict[str, list[ir.Node]] = {}
    every: set[str] = set()
    for node in model.graph:
        parts = node.metadata_props.get(MODULE, "").split(".")
        every.update(".".join(parts[:n]) for n in range(1, len(parts) + 1))
        root = ".".join(parts[:depth])
        fits = len(parts) >= depth and all(map(fnmatch.fnmatchcase, parts[:depth], pattern.split(".")))
        if fits and parts != [""]:
            found.setdefault(root, []).append(node)
    if not found:
        some = sorted(every - {""}, key=lambda name: (name.count("."), name))[:5]
        hint = did_you_mean(pattern, every - {""}, f"there are {', '.join(some)}")
        hint = hint if some else "the model does not say which modules its nodes are of"
        raise InputError(f"no node of the model comes from a module '{pattern}'", next_step=hint)
    return found


def _root(nodes: Sequence[ir.Node]) -> str:
    """The module that all the nodes are of."""
    paths = [n.metadata_props.get(MODULE, "").split(".") for n in nodes]
    same = itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False))
    return ".".join(parts[0] for parts in same)


def _forget_whose(function: ir.Function, root: str) -> None:
    """Nodes that several modules share say only which module below the caller's they are of."""
    for node in ir.traversal.RecursiveGraphIterator(function):
        path = node.metadata_props.pop(MODULE, "")
        below = path.removeprefix(root).lstrip(".") if root else path
        if below:
            node.metadata_props[MODULE] = below


def _call(grafting: Grafting, call: Fragment, place: Match, root: str) -> dict[ir.Value, ir.Value]:
    function = grafting.model.functions[next(iter(call.graph)).op_identifier()]
    values = [place.inputs[str(v.name)] for v in function.inputs]
    base = root.replace(".", "_") or str(place.nodes[-1].name or call.graph.name)
    graft = grafting.copy(call, values, {}, base, place.scope)
    node = graft.nodes[0]
    moved = grafting.put(place, graft)
    node.name = grafting.names.fresh(f"{base}_{node.op_type}")
    node.metadata_props.pop(MODULE, None)
    if root:
        node.metadata_props[MODULE] = root
    return moved


# Parts of a graph that are alike, and the function that can stand for all of them.

_FEW = 64  # integers of a constant that goes into the function: shapes and axes, which inference wants to see


def alike(
    model: ir.Model, groups: dict[str, list[ir.Node]], domain: str, kind: str
) -> tuple[Match, ir.Function, list[Match]]:
    """A place, the function of it, and the other places that are the same; among these one in every group.

    The smallest group is tried first: what layers share, such as the sizes of their input, an exporter leaves in the
    first of them, where it stays outside of the function.
    """
    refusals: list[InputError] = []
    for title in sorted(groups, key=lambda one: len(groups[one])):
        try:
            part = _part(model, groups[title])
            function = _function(part, domain, kind)
            blocked: list[str] = []
            alone = any(subgraphs(n) for n in part.nodes)
            pattern = Fragment(function.graph, title)
            others = [] if alone else matches(model, pattern, blocked, exact=True, without=part.nodes)
            _check_all_found(groups, title, others, blocked)
            return part, function, others
        except InputError as error:
            refusals.append(error)
    raise refusals[0]


def _check_all_found(groups: dict[str, list[ir.Node]], own: str, others: list[Match], blocked: list[str]) -> None:
    for title, nodes in groups.items():
        if title != own and not any(set(match.nodes) <= set(nodes) for match in others):
            raise InputError(
                f"the modules {own} and {title} are not built alike{f': {blocked[0]}' if blocked else ''}",
                where=f"{own} has {len(groups[own])} nodes, {title} has {len(nodes)}",
                next_step="make a function of each kind by itself",
            )


def _part(model: ir.Model, group: list[ir.Node]) -> Match:
    """What goes into some nodes and comes out of them, if nothing leads from them back in."""
    inside = set(group)
    scope = next(scope for scope, n in scoped_nodes(model) if n is group[0])
    entering = [v for v in dict.fromkeys(v for n in group for v in used_values(n)) if v.producer() not in inside]
    _check_closed(group, entering)
    _check_no_parameters(group)
    holder = {inner: n for n in group for g in subgraphs(n) for inner in ir.traversal.RecursiveGraphIterator(g)}
    leaving = [v for n in group for v in n.outputs if _leaves(v, inside | set(holder))]
    if not leaving:
        raise InputError("nothing uses what these nodes give", where=where(group[-1]), next_step="remove them instead")
    inputs: dict[str, ir.Value | None] = {str(v.name): v for v in entering}
    return Match(tuple(group), inputs, tuple(leaving), {}, scope)


def _leaves(value: ir.Value, inside: set[ir.Node]) -> bool:
    return value.is_graph_output() or any(use.node not in inside for use in value.uses())


def _check_closed(group: list[ir.Node], entering: list[ir.Value]) -> None:
    inside = set(group)
    came: dict[ir.Value, ir.Value | None] = dict.fromkeys(entering)
    waiting = list(entering)
    while waiting:
        value = waiting.pop()
        producer = value.producer()
        if producer in inside:
            raise _leads_back(value, came)
        for further in used_values(producer) if producer is not None else []:
            if further not in came:
                came[further] = value
                waiting.append(further)


def _leads_back(value: ir.Value, came: dict[ir.Value, ir.Value | None]) -> InputError:
    way, step = [], came[value]
    while step is not None:
        way.append(f"'{step.name}'")
        step = came[step]
    return InputError(
        f"the nodes cannot be one step: '{value.name}' leaves them, and what is made of it comes back in",
        where=" → ".join([f"'{value.name}'", *way]),
        next_step="take the nodes on that way in too, or fewer nodes",
    )


def _check_no_parameters(group: list[ir.Node]) -> None:
    for node in ir.traversal.RecursiveGraphIterator(ir.GraphView([], [], nodes=group)):
        if any(a.is_ref() for a in node.attributes.values()):
            raise InputError(
                f"{where(node)} has an attribute that is a parameter of the function it is in",
                next_step="choose nodes without such attributes",
            )


def _function(part: Match, domain: str, name: str) -> ir.Function:
    """The function, its body a copy of the nodes, without types: it may be called with others."""
    used = ir.traversal.RecursiveGraphIterator(ir.GraphView([], [], nodes=part.nodes))
    domains = {"" if n.domain == "ai.onnx" else n.domain for n in used} | {""}
    imports = {d: v for d, v in part.scope.opset_imports.items() if ("" if d == "ai.onnx" else d) in domains}
    entering = [v for v in part.inputs.values() if v is not None]
    graph = ir.GraphView(entering, part.outputs, nodes=part.nodes, opset_imports=imports, name=name).clone()
    for value, own in zip(entering, list(graph.inputs), strict=True):
        own.const_value = None
        if _is_few_integers(value):
            _put_inside(graph, own, value)
    for value in all_values(graph):
        if not value.is_initializer():
            value.type = value.shape = None
    return ir.Function(domain, name, "", graph=graph, attributes=[])


def _is_few_integers(value: ir.Value) -> bool:
    producer, tensor = value.producer(), value.const_value
    if producer is None and (tensor is None or tensor.size > _FEW or tensor.dtype.is_floating_point()):
        return False
    array = node_reader.constant(value)
    return array is not None and array.size <= _FEW and array.dtype.kind in "iu"


def _put_inside(graph: ir.Graph, own: ir.Value, value: ir.Value) -> None:
    array = node_reader.constant(value)
    assert array is not None
    node = ir.node("Constant", [], attributes={"value": ir.tensor(array)})
    node.name = node.outputs[0].name = own.name
    own.replace_all_uses_with(node.outputs[0])
    graph.inputs.remove(own)
    graph.insert_before(graph[0], node)
