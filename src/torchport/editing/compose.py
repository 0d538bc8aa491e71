"""Make one model of two, chained or side by side; weights are shared, not copied."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import onnx
import onnx_ir as ir

from torchport.editing.fragment import take_functions
from torchport.editing.selection import tensor_name
from torchport.errors import InputError, did_you_mean
from torchport.files.onnx_files import ModelLike, as_model
from torchport.irtools.dims import Dims, change_dims, dim_names, free_roots, texts_of
from torchport.irtools.inference import infer_missing
from torchport.irtools.metadata import ANNOTATION, PROOF, UNPROVEN
from torchport.irtools.names import FreshNames, rename
from torchport.irtools.traversal import all_values, graphs
from torchport.irtools.types import agrees, described
from torchport.opset.convert import convert, ir_version_for

# Make one model of two: one behind the other, or side by side. Weights are shared, not copied.
#
# `onnx.compose` does not see into branches for names, refuses another opset, knows nothing of dimensions that are the
# same from now on, and takes protobuf models, weights and all.

Connection = Mapping[str | ir.Value, str | ir.Value]


def chain(
    first: ModelLike, second: ModelLike, *, connect: Connection | None = None, prefix: str | None = None
) -> ir.Model:
    """One model whose outputs go into the inputs of another.

    Args:
        first: a model or a file; it stays as it is.
        second: the one behind it.
        connect: outputs of the first and the inputs of the second they go into, or their names. Without it by name,
            else in order.
        prefix: goes before every name of the second model. Without it only inner names that clash are changed.

    Returns:
        A new model. Outputs that go into the second are none of its outputs; inputs that nothing goes into stay inputs.

    Raises:
        InputError: the two do not fit; it says what each has.
        OpsetError: the one of the lower opset cannot be brought to the higher.

    Example:
        >>> whole = tp.graph.chain("backbone.onnx", "head.onnx", connect={"features": "x"})
        >>> tp.graph.save(whole, "whole.onnx")
    """
    given = as_model(first), as_model(second)
    if connect is not None:
        connect = {tensor_name(given[0], a): tensor_name(given[1], b) for a, b in connect.items()}
    one, two = _alike(*given)
    links = _by_names(one, two, connect) if connect is not None else _guessed(one, two)
    for output, taken in links:
        _check_fits(output, taken)
    _tell_dimensions_apart(one, two)
    for link in links:
        _unify(one, two, *link)
    used = {output for output, _ in links}
    return joined(one, two, links, [v for v in one.graph.outputs if v not in used], prefix)


def merge(first: ModelLike, second: ModelLike, *, prefix: str | None = None) -> ir.Model:
    """One model that does what two do, side by side.

    Inputs of the same name, type and shape become one.

    Args:
        first: a model or a file; it stays as it is.
        second: the other.
        prefix: goes before every name of the second model but those of the inputs they share.

    Returns:
        A new model with the outputs of both.

    Raises:
        InputError: both have an output of one name, or inputs of one name that differ, and there is no prefix.
        OpsetError: the one of the lower opset cannot be brought to the higher.

    Example:
        >>> both = tp.graph.merge("detector.onnx", "classifier.onnx")
    """
    one, two = _alike(as_model(first), as_model(second))
    own = {v.name: v for v in inputs_of(one)}
    links = [(own[v.name], v) for v in inputs_of(two) if v.name in own and _same_interface(own[v.name], v)]
    _tell_dimensions_apart(one, two)
    for link in links:
        _unify(one, two, *link)
    return joined(one, two, links, list(one.graph.outputs), prefix)


def _same_interface(one: ir.Value, other: ir.Value) -> bool:
    if one.type != other.type or (one.shape is None) != (other.shape is None):
        return False
    dims = list(zip(one.shape or (), other.shape or (), strict=False))
    whole = len(one.shape or ()) == len(other.shape or ())
    return whole and all(a == b if isinstance(a, int) else not isinstance(b, int) for a, b in dims)


# --- the same opset, the same dimensions ------------------------------------------------------------------------------


def _alike(*given: ir.Model) -> tuple[ir.Model, ir.Model]:
    """Copies of both, of one opset."""
    opsets = [m.opset_imports.get("", m.opset_imports.get("ai.onnx")) for m in given]
    target = max((v for v in opsets if v is not None), default=None)
    made = [
        m.clone() if opset in (None, target) or target is None else convert(m, target)
        for m, opset in zip(given, opsets, strict=True)
    ]
    one, two = made
    for domain, version in two.opset_imports.items():
        own = one.opset_imports.setdefault(domain, version)
        if own != version:
            one.opset_imports[domain] = _common_version(domain, own, version, made)
    return one, two


def _common_version(domain: str, own: int, other: int, models: Sequence[ir.Model]) -> int:
    """The higher of two versions of a domain, if every operator used is the same in both."""
    for model in models:
        for node in model.graph.all_nodes():
            if node.domain == domain and _since(node, own) != _since(node, other):
                raise InputError(
                    f"one model has version {own} of '{domain}', the other {other}, and {node.op_type} is not known to "
                    "be the same in both",
                    next_step="bring both to one version of these operators",
                )
    return max(own, other)


def _since(node: ir.Node, version: int) -> Any:
    try:
        return onnx.defs.get_schema(node.op_type, version, node.domain).since_version
    except onnx.defs.SchemaError:
        return version  # nobody knows what changed


def _tell_dimensions_apart(one: ir.Model, two: ir.Model) -> None:
    """A name that both have need not be one size: the second's get names of their own, until they are connected."""
    taken, own = _all_names(one), _all_names(two)
    for name in sorted(taken & own):
        number = 1
        while f"{name}_{number}" in taken | own:
            number += 1
        _substitute(two, name, f"{name}_{number}")
        own.add(f"{name}_{number}")


def _all_names(model: ir.Model) -> set[str]:
    """Return the names of dimensions, and what would be one in expressions if another model brought its name along."""
    texts = {text for value in all_values(model) for text in texts_of(value.shape)}
    return dim_names(model) | set(free_roots(texts))


def _substitute(model: ir.Model, name: str, by: str | int) -> None:
    """Give a dimension another name, or a size, wherever it is, also inside an expression such as ``2*N``."""

    dims = Dims.of(model, [name])

    def changed(text: str) -> str | int:
        if text == name:
            return by
        if name not in dims.symbols(text):
            return text
        return dims.evaluated(text, {name: by}) if isinstance(by, int) else dims.renamed(text, {name: _operand(by)})

    for value in all_values(model):
        if value.const_value is None:
            change_dims(value, changed)


def _operand(text: str) -> str:
    return text if text.isidentifier() else f"({text})"


def _unify(one: ir.Model, two: ir.Model, output: ir.Value, taken: ir.Value) -> None:
    """Dimensions of two values that are one from now on are the same everywhere."""
    for axis in range(len(output.shape or ()) if taken.shape is not None else 0):
        assert output.shape is not None
        assert taken.shape is not None  # which changes as dimensions get their sizes
        a, b = (d if isinstance(d, int) else d.value for d in (output.shape[axis], taken.shape[axis]))
        if a == b or a is None or b is None:
            continue
        old, new = (b, a) if isinstance(b, str) else (a, b)
        if isinstance(old, int):
            raise _unfit(output, taken)
        for model in (one, two):
            _substitute(model, old, new)


# --- what goes where --------------------------------------------------------------------------------------------------


def _by_names(one: ir.Model, two: ir.Model, connect: Connection) -> list[Link]:
    outputs, inputs = {v.name: v for v in one.graph.outputs}, {v.name: v for v in two.graph.inputs}
    links: list[Link] = []
    for source, target in connect.items():
        output = _known(str(source), outputs, "output", "first")
        links.append((output, _known(str(target), inputs, "input", "second")))
    twice = [t for t in connect.values() if list(connect.values()).count(t) > 1]
    if twice:
        raise InputError(f"two outputs go into the input '{twice[0]}'", next_step="connect each input once")
    if not links:
        raise InputError("nothing is connected", next_step="name an output and the input it goes into, or use merge")
    return links


def _known(name: str, known: Mapping[Any, ir.Value], what: str, which: str) -> ir.Value:
    if name in known:
        return known[name]
    hint = did_you_mean(name, known, f"it has {', '.join(map(str, known))}")
    raise InputError(f"the {which} model has no {what} '{name}'", next_step=hint)


def _guessed(one: ir.Model, two: ir.Model) -> list[Link]:
    """By name; where no name is the same, in order, if there are as many of the same types."""
    outputs, inputs = list(one.graph.outputs), inputs_of(two)
    named = {v.name: v for v in inputs}
    links = [(v, named[v.name]) for v in outputs if v.name in named]
    if links:
        return links
    if len(outputs) == len(inputs) and all(agrees(a, b) for a, b in zip(outputs, inputs, strict=True)):
        return list(zip(outputs, inputs, strict=True))
    raise InputError(
        "no output of the first model has the name of an input of the second, nor do they fit in order",
        where=f"outputs {_listed(outputs)}; inputs {_listed(inputs)}",
        next_step="say which goes where: connect={'output': 'input'}",
    )


def _listed(values: Iterable[ir.Value]) -> str:
    return ", ".join(f"'{v.name}' {described(v)}" for v in values) or "none"


def _check_fits(output: ir.Value, taken: ir.Value) -> None:
    if not agrees(output, taken):
        raise _unfit(output, taken)


def _unfit(output: ir.Value, taken: ir.Value) -> InputError:
    return InputError(
        f"output '{output.name}' is {described(output)}, input '{taken.name}' is {described(taken)}",
        next_step="change one of them (set_dtype, set_dim, insert), or connect others",
    )


# Make one graph of two, whose names and functions do not clash.

Link = tuple[ir.Value, ir.Value]  # an output of the first, and the input of the second that it goes into
_PROOF = (PROOF, UNPROVEN)  # what was proven was proven of each by itself
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
    fresh = FreshNames(one.graph, two.graph).fresh
    _rename_all(one, lambda name: fresh(f"first/{name}") if name in outside else name, without=outer_one)
    theirs = _names(one)
    _rename_all(two, lambda name: fresh(f"second/{name}") if name in theirs else name, without={*outer_two, *gone})


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
    return nodes | {str(v.name) for v in all_values(model.graph)}


def _rename_all(model: ir.Model, new: Callable[[str], str], *, without: set[ir.Value]) -> None:
    """Rename values and nodes, branches included, and the scales and zero points that annotations name."""
    names: dict[str, str] = {}
    for value in all_values(model.graph):
        if value.name and value not in without:
            names[value.name] = names.get(value.name) or new(value.name)
            rename(value, names[value.name])
    for graph in graphs(model.graph):
        for node in graph:
            node.name = new(node.name) if node.name else node.name
    for value in all_values(model.graph):
        annotation = value.meta.get(ANNOTATION)
        if annotation:
            value.meta[ANNOTATION] = {key: names.get(name, name) for key, name in annotation.items()}
