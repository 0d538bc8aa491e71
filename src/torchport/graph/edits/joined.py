"""Make one graph of two, whose names and functions do not clash."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from torchport.errors import InputError
from torchport.graph.edits.grafting.adopting import take_functions
from torchport.irtools.inference import infer_missing
from torchport.irtools.metadata import ANNOTATION
from torchport.irtools.names import rename
from torchport.irtools.traversal import graphs_in, values_in
from torchport.irtools.types import described
from torchport.opset.convert import ir_version_for

Link = tuple[ir.Value, ir.Value]  # an output of the first, and the input of the second that it goes into
_PROOF = ("torchport.proof", "torchport.unproven")  # what was proven was proven of each by itself
_USE_PREFIX = "give prefix='second_', which goes before the names of the second model"


def inputs_of(model: ir.Model) -> list[ir.Value]:
    """The inputs that must be given."""
    return [v for v in model.graph.inputs if not v.is_initializer()]


def joined(one: ir.Model, two: ir.Model, links: list[Link], outputs: list[ir.Value], prefix: str | None) -> ir.Model:
    """Both graphs as one; `outputs` are those of the first that stay outputs."""
    gone = {taken for _, taken in links}
    kept = [v for v in inputs_of(two) if v not in gone]
    _settle_names(
        one, two, gone, outer_one={*inputs_of(one), *outputs}, outer_two={*kept, *two.graph.outputs}, prefix=prefix
    )
    take_functions(one, two.graph, list(two.functions.values()))
    passed = [v for v in two.graph.outputs if v in gone]
    for value in passed:
        _through_identity(two.graph, value)
    ends = [*outputs, *two.graph.outputs]
    inputs = [*one.graph.inputs, *(v for v in two.graph.inputs if v not in gone)]
    opsets, name = dict(one.opset_imports), f"{one.graph.name}_{two.graph.name}"
    props, doc = {**two.graph.metadata_props, **one.graph.metadata_props}, one.graph.doc_string
    mine, theirs = _apart(one.graph), _apart(two.graph)
    for output, taken in links:
        taken.replace_all_uses_with(output)
    graph = ir.Graph(
        inputs,
        ends,
        nodes=[*mine[0], *theirs[0]],
        initializers=[v for v in (*mine[1], *theirs[1]) if v not in gone],
        opset_imports=opsets,
        name=name,
        doc_string=doc,
        metadata_props=props,
    )
    return _model(one, two, graph)


def _model(one: ir.Model, two: ir.Model, graph: ir.Graph) -> ir.Model:
    model = ir.Model(
        graph,
        ir_version=max(one.ir_version, two.ir_version),
        producer_name=one.producer_name,
        producer_version=one.producer_version,
        domain=one.domain,
        model_version=one.model_version,
        doc_string=one.doc_string,
        functions=list(one.functions.values()),
    )
    story = {**two.metadata_props, **one.metadata_props}
    model.metadata_props.update({k: v for k, v in story.items() if k not in _PROOF})
    if model.functions:
        model.ir_version = max(model.ir_version, ir_version_for(model))
    infer_missing(model)
    return model


def _apart(graph: ir.Graph) -> tuple[list[ir.Node], list[ir.Value]]:
    """Take a graph's nodes and weights out of it, so that another can have them."""
    nodes = list(graph)
    graph.outputs.clear()
    graph.remove(nodes)
    weights = [graph.initializers.pop(name) for name in list(graph.initializers)]
    graph.inputs.clear()
    return nodes, weights


def _through_identity(graph: ir.Graph, value: ir.Value) -> None:
    """An output that is an input as well needs a value of its own, once something else goes into the input."""
    node = ir.node("Identity", [value], name=f"{value.name}_identity")
    new = node.outputs[0]
    new.type, new.shape, new.name = value.type, value.shape, value.name
    graph.append(node)
    graph.outputs[:] = [new if v is value else v for v in graph.outputs]


def _settle_names(
    one: ir.Model,
    two: ir.Model,
    gone: set[ir.Value],
    *,
    outer_one: set[ir.Value],
    outer_two: set[ir.Value],
    prefix: str | None,
) -> None:
    """No two values or nodes of one name; those of inputs and outputs are changed only by a prefix."""
    if prefix is not None:
        _rename_all(two, lambda name: f"{prefix}{name}", without=gone)
    _check_interface(outer_one, outer_two)
    outside = {str(v.name) for v in outer_two}
    taken = _names(one) | _names(two)
    _rename_all(one, lambda name: _free(f"first/{name}", taken) if name in outside else name, without=outer_one)
    theirs = _names(one)
    _rename_all(
        two, lambda name: _free(f"second/{name}", taken) if name in theirs else name, without={*outer_two, *gone}
    )


def _check_interface(one: set[ir.Value], two: set[ir.Value]) -> None:
    own = {v.name: v for v in one}
    for value in two:
        if value.name in own:
            other = own[value.name]
            raise InputError(
                f"both models have '{value.name}': {described(other)} in the first, {described(value)} in the second",
                next_step=_USE_PREFIX,
            )


def _names(model: ir.Model) -> set[str]:
    nodes = {n.name for n in model.graph.all_nodes() if n.name}
    return nodes | {str(v.name) for v in values_in(model.graph)}


def _free(name: str, taken: set[str]) -> str:
    found, number = name, 1
    while found in taken:
        found, number = f"{name}_{number}", number + 1
    taken.add(found)
    return found


def _rename_all(model: ir.Model, new: Callable[[str], str], *, without: set[ir.Value]) -> None:
    """Rename values and nodes, branches included, and the scales and zero points that annotations name."""
    names: dict[str, str] = {}
    for value in values_in(model.graph):
        if value.name and value not in without:
            names[value.name] = names.get(value.name) or new(value.name)
            rename(value, names[value.name])
    for graph in graphs_in(model.graph):
        for node in graph:
            node.name = new(node.name) if node.name else node.name
    for value in values_in(model.graph):
        annotation = value.meta.get(ANNOTATION)
        if annotation:
            value.meta[ANNOTATION] = {key: names.get(name, name) for key, name in annotation.items()}
