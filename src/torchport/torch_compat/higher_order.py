"""A choice and a loop as ONNX has them, as operators torch.export can trace.

torch's own `while_loop` wants carried values of fixed sizes, and its `scan` cannot stop early; a decoder that appends
a token needs both. torch's own `cond` cannot stand beside a size that comes from a value (`.item()` before it fails in
its decomposition, torch 2.13). So these are higher-order operators of our own, with ONNX's `If` and `Loop` as their
translations.

They also stand for torch's own operators in the user's code (control_flow/flow.py).

They are written against torch's internals, because torch has no public way to define such operators: dispatch keys,
sub-tracing and unbacked sizes are those of `torch/_higher_order_ops/while_loop.py`. Checked with torch 2.13.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import onnx_ir as ir
import torch

from torchport.torch_compat import tracing
from torchport.torch_compat.exporter import call_op
from torchport.torch_compat.parts import part
from torchport.torch_compat.shape_env import fresh_size, statically_known_true
from torchport.torch_compat.tracing import below_vmap, disable_proxy_modes_tracing, fake_mode, has_vmap

# At import: where one is missing, this module cannot be imported, and the route `rewrite` is off.
DispatchKey: Any = part("DispatchKey")
HigherOrderOperator: Any = part("HigherOrderOperator")
FakeTensorMode: Any = part("FakeTensorMode")
ProxyTorchDispatchMode: Any = part("ProxyTorchDispatchMode")
autograd_not_implemented: Any = part("autograd_not_implemented")
reenter_make_fx: Any = part("reenter_make_fx")
track_tensor_tree: Any = part("track_tensor_tree")
unique_graph_id: Any = part("unique_graph_id")
part("ShapeEnv")

Sizes = Sequence[Sequence[int]]
Told = Sequence[Sequence[Any] | None]  # for each result its sizes as far as a formula is known for them
_GRAPH = "torchport_graph"


class _Choice(HigherOrderOperator):
    def __init__(self) -> None:
        super().__init__("torchport_choice")

    def __call__(
        self,
        test: torch.Tensor,
        then: Callable[..., Any],
        otherwise: Callable[..., Any],
        inputs: Sequence[Any],
        told: Told = (),
    ) -> tuple[torch.Tensor, ...]:
        """`then(*inputs)` or `otherwise(*inputs)`: tensors of the same number, types and ranks; sizes may differ.

        Args:
            test: which one.
            then: the one if the test holds.
            otherwise: the other one.
            inputs: tensors and sizes.
            told: for each result its sizes, or None; in them None for a size without a formula. Without a formula, a
                size on which the two differ is one that only the running model knows.
        """
        return super().__call__(test, then, otherwise, tuple(inputs), tuple(told))


choice = _Choice()


@choice.py_impl(DispatchKey.CompositeExplicitAutograd)
def _choose(test: torch.Tensor, then: Any, otherwise: Any, inputs: Any, told: Told) -> tuple[torch.Tensor, ...]:
    return (then if test else otherwise)(*inputs)


choice.py_autograd_impl(autograd_not_implemented(choice, deferred_error=True))


@choice.py_impl(FakeTensorMode)
def _choose_fake(
    mode: Any, test: torch.Tensor, then: Any, otherwise: Any, inputs: Any, told: Told
) -> tuple[torch.Tensor, ...]:
    with mode:
        with mode.shape_env.ignore_fresh_unbacked_symbols():
            left, right = (_known_results(f, inputs) or _apart(f, inputs) for f in (then, otherwise))
        return _merged(left, right, told)


def _known_results(function: Any, inputs: Sequence[Any]) -> list[Any] | None:
    """What a branch gives, where it was traced with inputs of these very sizes: to run it again would tell no more."""
    graph = getattr(function, _GRAPH, function)
    if not isinstance(graph, torch.fx.GraphModule):
        return None
    expected = [node.meta.get("val") for node in graph.graph.find_nodes(op="placeholder")]
    results = [getattr(node, "meta", {}).get("val") for node in graph.graph.output_node().args[0]]  # type: ignore[union-attr]
    if not all(isinstance(result, torch.Tensor) for result in results):
        return None
    given = [_sizes(value) for value in inputs]
    return results if given == [_sizes(value) for value in expected] else None


def _sizes(value: Any) -> list[Any]:
    """The sizes of a tensor, or a size itself, as torch has them in its formulas by now."""
    env = fake_mode().shape_env
    sizes = value.shape if isinstance(value, torch.Tensor) else [value]
    return [env.replace(s.node.expr) if isinstance(s, torch.SymInt) else s for s in sizes]


def _apart(function: Callable[..., Any], inputs: Sequence[Any]) -> Any:
    with apart():
        return function(*inputs)


def _traced(function: Callable[..., Any], inputs: Sequence[Any]) -> Any:
    """Return the graph of a function. Out of one inside of another torch drops the calls that end torch.vmap (2.13)."""
    graph = _apart(reenter_make_fx(function), inputs)
    if not has_vmap(graph):
        return graph
    with below_vmap():
        return _apart(reenter_make_fx(function), inputs)


def _merged(left: Sequence[torch.Tensor], right: Sequence[torch.Tensor], told: Told) -> tuple[torch.Tensor, ...]:
    """Tensors that may be the ones or the others."""
    return tuple(_either(*pair) for pair in zip(left, right, told or [None] * len(left), strict=True))


def _either(left: torch.Tensor, right: torch.Tensor, told: Sequence[Any] | None) -> torch.Tensor:
    """A tensor that may be one or the other: a size on which they differ is unknown, unless there is a formula."""
    rows = zip(left.shape, right.shape, told or [None] * left.dim(), strict=True)
    sizes = [_either_size(a, b) if formula is None else formula for a, b, formula in rows]
    return torch.empty(sizes, dtype=left.dtype, device=left.device)


def _either_size(left: Any, right: Any) -> Any:
    return left if statically_known_true(left == right) else fresh_size()


@choice.py_impl(ProxyTorchDispatchMode)
def _choose_traced(
    mode: Any, test: torch.Tensor, then: Any, otherwise: Any, inputs: Any, told: Told
) -> tuple[torch.Tensor, ...]:
    with disable_proxy_modes_tracing(), fake_mode().shape_env.ignore_fresh_unbacked_symbols():
        graphs = [_traced(function, inputs) for function in (then, otherwise)]
    arguments = (test, *graphs, inputs, told)
    left, right = map(_results, graphs)
    names = dict(zip(("then", "otherwise"), graphs, strict=True))
    return _recorded(mode, choice, arguments, names, lambda: _merged(left, right, told))


@choice.py_functionalize_impl
def _choose_functional(ctx: Any, test: torch.Tensor, then: Any, otherwise: Any, inputs: Any, told: Told) -> Any:
    with ctx.redispatch_to_next():
        outputs = choice(
            ctx.unwrap_tensors(test),
            _functional(ctx, then),
            _functional(ctx, otherwise),
            ctx.unwrap_tensors(inputs),
            told,
        )
    return ctx.wrap_tensors(outputs)


def _functional(ctx: Any, function: Any) -> Any:
    """A branch that keeps no state, and knows its graph if it has one."""
    functional = ctx.functionalize(function)
    setattr(functional, _GRAPH, function)
    return functional


def _results(graph: torch.fx.GraphModule) -> list[torch.Tensor]:
    """What a traced graph gives, as fake tensors."""
    return [node.meta["val"] for node in graph.graph.output_node().args[0]]  # type: ignore[union-attr]


def _recorded(
    mode: Any, operator: Any, arguments: Any, graphs: dict[str, Any], outputs: Callable[[], tuple[torch.Tensor, ...]]
) -> tuple[torch.Tensor, ...]:
    """Put a call into the graph that is being traced, with the graphs it calls beside it."""
    for kind, graph in graphs.items():
        _, name = unique_graph_id(mode, prefix=f"{kind}_graph")
        mode.tracer.root.register_module(name, graph)
    proxies = tracing.tree_map(mode.tracer.unwrap_proxy, arguments)
    proxy = mode.tracer.create_proxy("call_function", operator, proxies, {}, name=operator._name)
    with disable_proxy_modes_tracing(), fake_mode():
        results = outputs()
    return track_tensor_tree(results, proxy, constant=None, tracer=mode.tracer)


class _Loop(HigherOrderOperator):
    def __init__(self) -> None:
        super().__init__("torchport_loop")

    def __call__(
        self,
        trip: Any,
        start: torch.Tensor,
        body: Callable[..., Any],
        carried: Sequence[torch.Tensor],
        extra: Sequence[Any],
        changing: Sizes,
        stops: bool,
    ) -> tuple[torch.Tensor, ...]:
        """Run `body` until it says stop.

        Args:
            trip: how many rounds at most; None for no limit.
            start: whether to run the first round.
            body: ``(i, *carried, *extra) -> (go_on, *carried, *rows)``.
            carried: values handed from round to round.
            extra: tensors and sizes that stay the same.
            changing: for each carried value the axes whose size may change.
            stops: whether `go_on` can be false before `trip` is reached.

        Returns:
            The last carried values, then each row output stacked along a new first axis.
        """
        return super().__call__(trip, start, body, tuple(carried), tuple(extra), tuple(map(tuple, changing)), stops)


loop = _Loop()


def _entry(carried: Sequence[torch.Tensor], changing: Sizes) -> list[torch.Tensor]:
    """What the body is traced with: the round's number, and the carried values with changing sizes forgotten."""
    number = torch.zeros((), dtype=torch.int64).clone()
    return [number, *(_forgotten(value, axes) for value, axes in zip(carried, changing, strict=True))]


def _forgotten(value: torch.Tensor, axes: Sequence[int]) -> torch.Tensor:
    sizes = [fresh_size() if axis in axes else size for axis, size in enumerate(value.shape)]
    return torch.empty(sizes, dtype=value.dtype, device=value.device)


def known_symbols() -> set[Any]:
    """Every size there is a name for by now."""
    return set(fake_mode().shape_env.var_to_range)


def symbols_of(size: Any) -> set[Any]:
    return set(size.node.expr.free_symbols) if isinstance(size, torch.SymInt) else set()


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """What torch learns here of sizes that were there before is forgotten: an assertion, or a sum of two tensors, says
    that two sizes are equal, but only where this branch is taken. So does a guard on sizes of inputs, which the example
    settles although it may take the other branch; it stays among those that the proof tries.
    """
    env = fake_mode().shape_env
    known = {s for s in env.var_to_range if env.is_unbacked_symint(s)}
    before = [(facts, dict(facts)) for facts in (env.replacements, env.var_to_range)]
    axioms, divisible = dict(env.axioms), set(env.divisible)
    asserts, count = {k: list(v) for k, v in env.deferred_runtime_asserts.items()}, env.num_deferred_runtime_asserts
    guards = len(env.guards)
    try:
        yield
    finally:
        changed = env.num_deferred_runtime_asserts != count
        if len(env.guards) > guards:
            changed = True
            del env.guards[guards:]
            env.axioms, env.divisible = axioms, divisible
        for facts, then in before:
            for symbol in [s for s in facts if s in known and facts[s] != then.get(s)]:
                changed = True
                if symbol in then:
                    facts[symbol] = then[symbol]
                else:
                    del facts[symbol]
        if changed:
            env.deferred_runtime_asserts, env.num_deferred_runtime_asserts = asserts, count
            env.axioms = {k: v for k, v in env.axioms.items() if k in axioms or not k.free_symbols & known}
            env.divisible = {e for e in env.divisible if e in divisible or not e.free_symbols & known}
            env._replacements_version_counter += 1
            env._version_counter += 1


@loop.py_impl(DispatchKey.CompositeExplicitAutograd)
def _run(
    trip: Any, start: torch.Tensor, body: Any, carried: Any, extra: Any, changing: Sizes, stops: bool
) -> tuple[torch.Tensor, ...]:
    values, rows, going, number = list(carried), [], bool(start), 0
    while going and (trip is None or number < trip):
        going, *outputs = body(torch.tensor(number), *values, *extra)
        values, row = list(outputs[: len(carried)]), outputs[len(carried) :]
        rows.append(row)
        number += 1
    return (*values, *(torch.stack(column) for column in zip(*rows, strict=True)))


loop.py_autograd_impl(autograd_not_implemented(loop, deferred_error=True))


@loop.py_impl(FakeTensorMode)
def _fake(
    mode: Any, trip: Any, start: torch.Tensor, body: Any, carried: Any, extra: Any, changing: Sizes, stops: bool
) -> tuple[torch.Tensor, ...]:
    with mode:
        with mode.shape_env.ignore_fresh_unbacked_symbols():
            _, *outputs = _apart(body, [*_entry(carried, changing), *extra])
        return _finals(trip, carried, outputs[len(carried) :], changing, stops)


def _finals(trip: Any, carried: Any, rows: Any, changing: Sizes, stops: bool) -> tuple[torch.Tensor, ...]:
    """What the loop gives, as far as it is known before it runs."""
    last = [_forgotten(value, axes) for value, axes in zip(carried, changing, strict=True)]
    rounds = fresh_size() if rows and (stops or trip is None) else trip
    return (*last, *(torch.empty((rounds, *r.shape), dtype=r.dtype) for r in rows))


@loop.py_impl(ProxyTorchDispatchMode)
def _trace(
    mode: Any, trip: Any, start: torch.Tensor, body: Any, carried: Any, extra: Any, changing: Sizes, stops: bool
) -> tuple[torch.Tensor, ...]:
    with disable_proxy_modes_tracing(), fake_mode().shape_env.ignore_fresh_unbacked_symbols():
        graph = _traced(body, [*_entry(carried, changing), *extra])
    rows = _results(graph)[1 + len(carried) :]
    arguments = (trip, start, graph, carried, extra, changing, stops)
    return _recorded(mode, loop, arguments, {"round": graph}, lambda: _finals(trip, carried, rows, changing, stops))


@loop.py_functionalize_impl
def _functionalize(
    ctx: Any, trip: Any, start: torch.Tensor, body: Any, carried: Any, extra: Any, changing: Sizes, stops: bool
) -> Any:
    with ctx.redispatch_to_next():
        outputs = loop(
            ctx.unwrap_tensors(trip),
            ctx.unwrap_tensors(start),
            ctx.functionalize(body),
            ctx.unwrap_tensors(carried),
            ctx.unwrap_tensors(extra),
            changing,
            stops,
        )
    return ctx.wrap_tensors(outputs)


def translations() -> dict[Any, Callable[..., Any]]:
    """Both operators in ONNX, for torch's translation table."""
    return {choice: _translate_choice, loop: _translate_loop}


def _translate_choice(test: Any, then: Any, otherwise: Any, inputs: Sequence[Any], told: Any = ()) -> Any:
    """ONNX's If, each branch a call of its function."""
    given = _values(inputs)
    branches = [_called(function, given) for function in (then, otherwise)]
    graphs = [
        ir.Graph((), call.outputs, nodes=[call], name=function.name)
        for call, function in zip(branches, (then, otherwise), strict=True)
    ]
    return call_op("If", test, _num_outputs=len(then.outputs), then_branch=graphs[0], else_branch=graphs[1])


def _called(function: ir.Function, inputs: Sequence[ir.Value | None]) -> ir.Node:
    call = ir.Node(function.domain, function.name, inputs, num_outputs=len(function.outputs))
    for own, output in zip(function.outputs, call.outputs, strict=True):
        output.name = f"{own.name}_{function.name}"
        output.type, output.shape = own.type, own.shape
    return call


def _translate_loop(
    trip: Any, start: Any, body: Any, carried: Sequence[Any], extra: Sequence[Any], changing: Any, stops: bool
) -> Any:
    """ONNX's Loop around a call of the body."""
    number = ir.Value(name=f"round_{body.name}", shape=ir.Shape([]), type=ir.TensorType(ir.DataType.INT64))
    going = ir.Value(name=f"going_{body.name}", shape=ir.Shape([]), type=ir.TensorType(ir.DataType.BOOL))
    inner = [
        ir.Value(name=f"{value.name}_in_{body.name}", type=value.type, shape=_inner_shape(value, axes))
        for value, axes in zip(carried, changing, strict=True)
    ]
    call = _called(body, [number, *inner, *_values(extra)])
    graph = ir.Graph([number, going, *inner], call.outputs, nodes=[call], name=f"{body.name}_round")
    (limit,) = _values([trip])
    return call_op("Loop", limit, start, *carried, _num_outputs=len(call.outputs) - 1, body=graph)


def _inner_shape(value: ir.Value, axes: Sequence[int]) -> ir.Shape | None:
    if value.shape is None:
        return None
    return ir.Shape([None if axis in axes else size for axis, size in enumerate(value.shape)])


def _values(given: Sequence[Any]) -> list[ir.Value | None]:
    """Plain numbers as constants."""
    return [
        call_op("Constant", value=ir.tensor(v, dtype=ir.DataType.INT64))[0] if isinstance(v, int) else v for v in given
    ]
