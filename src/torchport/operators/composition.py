"""Operators given as plain PyTorch: a program's calls of them are replaced before it is translated.

A translation builds ONNX nodes; a composition is a PyTorch function of operators that have translations. It is captured
as the model was, so it sees symbolic sizes and must not look at values.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from torchport.errors import OptionError
from torchport.torch_compat import registries, tracing

_ORIGIN = ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn")  # where a call comes from

_registered: dict[str, Callable[..., Any]] = {}


def composition(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Map a torch operator by a plain PyTorch function of operators that have mappings. For the modern routes.

    Args:
        name: the operator, with all its overloads, ``aten::cdist`` or ``mylib::my_add``; or one, ``aten::add.Tensor``.

    Example:
        >>> @tp.composition("mylib::my_add")
        ... def my_add(a, b, alpha=3.0):
        ...     return a * alpha + b
    """
    if not isinstance(name, str) or "::" not in name:
        raise OptionError(f"'{name}' names no operator", next_step='write it as "domain::name": "aten::cdist"')

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        _registered[name] = function
        return function

    return register


def forget(name: str) -> None:
    """Take back what was registered for an operator."""
    _registered.pop(name, None)


def compositions() -> dict[Any, Callable[..., Any]]:
    """The user's, by overload."""
    found: dict[Any, Callable[..., Any]] = {}
    for name, function in _registered.items():
        own, _, overload = name.partition(".")
        found |= {op: function for o, op in registries.overloads(own).items() if overload in ("", o)}
    return found


def composed(
    program: torch.export.ExportedProgram, compositions: Mapping[Any, Callable[..., Any]]
) -> torch.export.ExportedProgram:
    """The program with its calls of these operators replaced, also those that replacing left; itself if it has none."""
    by_name = {_name(op): function for op, function in compositions.items()}
    calls = [(node, by_name.get(_name(node.target))) for node in operator_calls(program.graph_module)]
    used = {_name(node.target) for node, function in calls if function is not None and applies_to(function, node)}
    wanted = {op: function for op, function in compositions.items() if _name(op) in used}
    if not wanted:
        return program
    others = {op: function for op, function in compositions.items() if op not in wanted}
    return composed(_inlined(program, wanted) or program.run_decompositions(wanted), others)


def _inlined(
    program: torch.export.ExportedProgram, wanted: Mapping[Any, Callable[..., Any]]
) -> torch.export.ExportedProgram | None:
    """The program with each call replaced by the graph of its composition. Torch's `run_decompositions` traces the
    whole program again, which takes seconds where a few calls take milliseconds.

    None where that is needed: for calls in the graphs of branches and loops, calls that write in place or whose result
    is an output, and compositions that hold tensors of numbers or sizes that only values tell, or give back an input,
    which the program may write to afterwards.
    """
    by_name = {_name(op): function for op, function in wanted.items()}
    found = [(n, by_name.get(_name(n.target))) for n in operator_calls(program.graph_module)]
    calls = [(n, function) for n, function in found if function is not None and applies_to(function, n)]
    if not tracing.can_trace() or not all(_is_plain(n, program.graph) for n, _ in calls):
        return None
    bodies: dict[str, torch.fx.Graph] = {}
    for node, function in calls:
        with contextlib.suppress(_LeftError):
            body = _traced(node, function, wanted)
            if body is None:
                return None
            bodies[node.name] = body
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(program.graph, {}))
    for node in [n for n in graph.nodes if n.name in bodies]:
        _insert(graph, node, bodies[node.name])
    return _with_graph(program, graph)


class _LeftError(Exception):
    """A composition that leaves a call as it is."""


def _is_plain(node: torch.fx.Node, graph: torch.fx.Graph) -> bool:
    """Check that a call is in the outermost graph, writes to nothing that others see, and is no output itself."""
    parts = [user for user in node.users if user.target is operator.getitem]
    users = [*node.users, *(user for part in parts for user in part.users)]
    return node.graph is graph and _writes_unseen(node) and all(user.op != "output" for user in users)


def _writes_unseen(node: torch.fx.Node) -> bool:
    """Check that a call writes to nothing, or to new tensors that it alone uses: `zeros(n).scatter_reduce_(...)`."""
    written = [node.args[place] for place in registries.written_places(node.target)]
    return all(
        isinstance(n, torch.fx.Node)
        and n.op == "call_function"
        and registries.is_overload(n.target)
        and not registries.gives_view(n.target)
        and not registries.written_places(n.target)
        and len(n.users) == 1
        for n in written
    )


def _traced(node: torch.fx.Node, function: Callable[..., Any], wanted: Mapping[Any, Any]) -> torch.fx.Graph | None:
    """The graph of a composition for one call, with the call's nodes as its inputs; None if it cannot stand alone."""
    inputs = node.all_input_nodes
    values = [n.meta.get("val") for n in inputs]
    if any(v is None for v in values):
        return None

    def call(*given: Any) -> Any:
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), dict(zip(inputs, given, strict=True)).__getitem__)
        result = function(*args, **kwargs)
        if result is NotImplemented:
            raise _LeftError
        return result

    graph = tracing.graph_of(call, values, dict(wanted))
    if graph is None or graph.find_nodes(op="get_attr") or any(map(_shares_input, graph.output_node().all_input_nodes)):
        return None
    return graph


def _shares_input(node: torch.fx.Node) -> bool:
    """Check that a value is an input of its graph or a view of one."""
    while node.op == "call_function" and registries.is_overload(node.target) and registries.gives_view(node.target):
        node = node.all_input_nodes[0]
    return node.op == "placeholder"


def _insert(graph: torch.fx.Graph, node: torch.fx.Node, body: torch.fx.Graph) -> None:
    """Put the graph of a composition in the place of a call. Its nodes come from the call's line."""
    placed = dict(zip(body.find_nodes(op="placeholder"), node.all_input_nodes, strict=True))
    with graph.inserting_before(node):
        result: Any = graph.graph_copy(body, placed)
    kept = {key: value for key, value in node.meta.items() if key in _ORIGIN}
    for one in body.nodes:
        if one.op == "call_function":
            placed[one].meta |= kept
    if isinstance(result, torch.fx.Node):
        node.replace_all_uses_with(result)
    for getitem in list(node.users):
        getitem.replace_all_uses_with(result[getitem.args[1]])
        graph.erase_node(getitem)
    graph.erase_node(node)


def _with_graph(program: torch.export.ExportedProgram, graph: torch.fx.Graph) -> torch.export.ExportedProgram:
    graph.eliminate_dead_code()
    module = torch.fx.GraphModule(program.graph_module, graph)
    module.meta.update(program.graph_module.meta)
    return torch.export.ExportedProgram(
        root=module,
        graph=graph,
        graph_signature=program.graph_signature,
        state_dict=program.state_dict,
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        example_inputs=program.example_inputs,
        constants=program.constants,
        verifiers=program.verifiers,  # the default one allows no call that writes in place
    )


def only_where(
    applies: Callable[..., bool],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A composition for some calls only, by their arguments (tensors as torch.export knows them); others are left as
    they are. Replacing none saves a capture."""

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def composition(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs) if applies(*args, **kwargs) else NotImplemented

        composition.applies = applies  # type: ignore[attr-defined]
        return composition

    return mark


def is_partial(function: Callable[..., Any]) -> bool:
    """Check that a composition is for some calls only."""
    return hasattr(function, "applies")


def applies_to(function: Callable[..., Any], node: torch.fx.Node) -> bool:
    """Check that a composition replaces a call."""
    applies = getattr(function, "applies", None)
    if applies is None:
        return True
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
    return bool(applies(*args, **kwargs))


def operator_calls(module: torch.nn.Module) -> Iterator[torch.fx.Node]:
    """Every call of an operator, in branches and loops too."""
    for part in module.modules():
        if isinstance(part, torch.fx.GraphModule):
            yield from (n for n in part.graph.nodes if n.op == "call_function" and registries.is_overload(n.target))


def _name(target: Any) -> str:
    """With its overload, and the same for the form that writes in place."""
    schema = registries.schema(target)
    return f"{schema.name.removesuffix('_')}.{schema.overload_name}"
