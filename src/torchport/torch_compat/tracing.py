"""Modes and structures of torch's tracer."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from torchport.errors import MissingPartError
from torchport.torch_compat.parts import has, part, patched


def fake_mode() -> Any:
    """Return the mode in which torch.export runs the model, with its sizes."""
    mode = part("detect_fake_mode")()
    assert mode is not None, "only under torch.export"
    return mode


def real_tensors() -> contextlib.AbstractContextManager[Any]:
    """Leave the capture for a while: tensors made inside have numbers."""
    return part("unset_fake_temporarily")()


@contextlib.contextmanager
def plainly() -> Iterator[None]:
    """Leave the capture and its modes for a while, to compute with numbers. Drawing random ones is an error."""
    with part("DisableTorchFunction")(), disable_proxy_modes_tracing(), real_tensors(), torch.no_grad():
        before = torch.get_rng_state()
        try:
            yield
            if not torch.equal(before, torch.get_rng_state()):
                raise ValueError("random numbers were drawn")
        finally:
            torch.set_rng_state(before)


def disable_proxy_modes_tracing() -> contextlib.AbstractContextManager[Any]:
    """Record nothing into the graph for a while."""
    return part("disable_proxy_modes_tracing")()


def unnoted() -> contextlib.AbstractContextManager[Any]:
    """Keep calls that torch's tracer notes before they are dispatched, as those of torch.vmap, out of the graph."""
    name = "_temp_remove_pre_dispatch_torch_function_mode"
    return part(name)() if has(name) else contextlib.nullcontext()


def below_autograd(function: Callable[..., Any], tensors: Any) -> Any:
    """Return a function as a graph of operators, with those of the gradients that it takes among them."""
    plain = {op: f for op, f in part("decomposition_table").items() if "_backward" in str(op)}
    given = [tensor.detach() for tensor in tensors]
    with disable_proxy_modes_tracing(), unnoted(), torch.enable_grad():
        graph = part("make_fx")(function, decomposition_table=plain)(*given)
        writes = any(getattr(getattr(n.target, "_schema", None), "is_mutable", False) for n in graph.graph.nodes)
        return part("make_fx")(torch.func.functionalize(graph))(*given) if writes else graph


def can_trace() -> bool:
    """Check that `graph_of` has its parts."""
    return has("make_fx", "enable_python_dispatcher")


def graph_of(
    function: Callable[..., Any], values: Sequence[Any], decompositions: dict[Any, Callable[..., Any]]
) -> torch.fx.Graph | None:
    """Return a function of the fake tensors and sizes of a program as a graph; None if it makes sizes that only values
    tell, which belong to the program.

    Args:
        function: called with `values`.
        values: what stands for the results of the program's nodes.
        decompositions: functions to call in the place of operators.
    """
    mode = next((v.fake_mode for v in values if hasattr(v, "fake_mode")), None)
    if mode is None:
        return None
    before = set(mode.shape_env.var_to_range) if mode.shape_env is not None else set()
    with mode, part("enable_python_dispatcher")(), torch.no_grad():
        make_fx = part("make_fx")
        traced = make_fx(function, decomposition_table=decompositions)(*values)
        if any(getattr(getattr(n.target, "_schema", None), "is_mutable", False) for n in traced.graph.nodes):
            traced = make_fx(torch.func.functionalize(function), decomposition_table=decompositions)(*values)
    new = mode.shape_env is not None and set(mode.shape_env.var_to_range) - before
    return None if new else traced.graph


def replayed(graph: torch.fx.GraphModule, tensors: Sequence[torch.Tensor]) -> Any:
    """Run a graph in the capture that is under way; operators keep the lines that they come from."""
    with part("preserve_node_meta")() if has("preserve_node_meta") else contextlib.nullcontext():
        return torch.fx.Interpreter(graph).run(*tensors)


def has_vmap(graph: torch.fx.GraphModule) -> bool:
    """Check that torch.vmap is noted in a graph by the calls that begin and end it."""
    return has("_add_batch_dim") and bool(graph.graph.find_nodes(op="call_function", target=part("_add_batch_dim")))


def below_vmap() -> contextlib.AbstractContextManager[Any]:
    """Trace the graphs of branches after torch.vmap was applied: they have operators on whole tensors only."""

    def lower(trace: Any) -> Any:
        def traced(tracer: Any, f: Any, *args: Any) -> Any:
            before, tracer.pre_dispatch = tracer.pre_dispatch, False
            try:
                return trace(tracer, f, *args)
            finally:
                tracer.pre_dispatch = before

        return traced

    return patched("trace_subgraph", lower)


def function_modes() -> list[TorchFunctionMode]:
    """Return the modes that are active, without those of torch's tracer, which sets its own for each graph."""
    tracer = part("disable_proxy_modes_tracing").__module__
    return [mode for mode in part("_get_current_function_mode_stack")() if type(mode).__module__ != tracer]


@contextlib.contextmanager
def shared_modules_in_branches() -> Iterator[None]:
    """Let branches and loops call modules that the model has under several names. The tracer of a branch does not know
    the stand-ins that the model's own tracer made of them, and fails for want of their names."""
    name = "_ModuleStackTracer.path_of_module"
    if not has(name, "_ModuleNotInstalledAsSubmoduleError"):
        yield
        return

    def named(plain: Callable[[Any, Any], str]) -> Callable[[Any, Any], str]:
        def path_of_module(self: Any, module: Any) -> str:
            try:
                return plain(self, module)
            except KeyError as error:
                raise part("_ModuleNotInstalledAsSubmoduleError") from error  # torch goes on without a name

        return path_of_module

    with patched(name, named):
        yield


def without_fake_cache() -> contextlib.AbstractContextManager[Any]:
    """Keep no results of operators on fake tensors for a while."""
    patch: contextlib.AbstractContextManager[Any] = part("dynamo_config").patch(fake_tensor_cache_enabled=False)
    return patch


def is_batched(tensor: torch.Tensor) -> bool:
    """Check that a tensor stands for one row, inside of a function that torch.vmap runs."""
    return has("is_functorch_wrapped_tensor") and bool(part("is_functorch_wrapped_tensor")(tensor))


@contextlib.contextmanager
def without_tracing_state() -> Iterator[None]:
    """While torch.jit traces, sizes are tensors; here they are numbers."""
    state = part("_get_tracing_state")()
    set_state = part("_set_tracing_state")
    set_state(None)
    try:
        yield
    finally:
        set_state(state)


def strides(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return a tensor's strides, by torch's own method even while another one replaces it."""
    found: tuple[Any, ...] = part("TensorBase.stride")(tensor)
    return found


def is_setitem(function: Any) -> bool:
    """Check that a function is ``x[places] = value``."""
    return has("Tensor.__setitem__") and function is part("Tensor.__setitem__")


def assert_in_graph(condition: Any, message: str) -> None:
    """Put an assertion of a condition on sizes into the graph."""
    part("_assert_scalar")(condition, message)


def unshared_types() -> contextlib.AbstractContextManager[Any]:
    """Compile modules anew with torch.jit.script, whose result else holds the graphs of what was compiled before."""

    def unshared(create: Any) -> Any:
        return lambda module, stubs, share_types=True, is_tracing=False: create(module, stubs, False, is_tracing)

    return patched("create_script_module", unshared) if has("create_script_module") else contextlib.nullcontext()


# Structures of tensors: lists, tuples, dictionaries, and classes that were registered.


def tree_map(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return the structure with `function` of each leaf."""
    return _pytree().tree_map(function, tree)


def tree_map_only(kind: Any, function: Callable[[Any], Any], tree: Any) -> Any:
    """Return the structure with `function` of each leaf of a class."""
    return _pytree().tree_map_only(kind, function, tree)


def tree_leaves(tree: Any) -> list[Any]:
    """Return the leaves of a structure."""
    leaves: list[Any] = _pytree().tree_leaves(tree)
    return leaves


def tree_flatten(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], Any]:
    """Return the leaves of a structure, and its form."""
    leaves, form = _pytree().tree_flatten(tree, is_leaf=is_leaf)
    return leaves, form


def tree_unflatten(leaves: Any, form: Any) -> Any:
    """Return the structure of leaves and a form."""
    return _pytree().tree_unflatten(leaves, form)


def tree_structure(tree: Any) -> Any:
    """Return the form of a structure."""
    return _pytree().tree_structure(tree)


def register_structure(kind: type, apart: Callable[[Any], Any], together: Callable[[Any, Any], Any]) -> None:
    """Make a class a structure: `apart` gives its children and the rest, `together` makes it of both."""
    _pytree().register_pytree_node(kind, apart, together)


def _pytree() -> Any:
    return sys.modules[part("pytree").__module__]


# The control flow operators that users call: torch.cond, torch.switch, while_loop, scan, map, associative_scan.
#
# Called from Python, torch compiles each with dynamo, even where nothing is captured. That refuses results that are
# inputs ("might be aliasing"), gives up after a number of different sizes, and keeps state from one model to the next:
# the second export of a process finds sizes fixed by the first. They are called as plain functions here.
#
# torch 2.13 to 2.15; `_hop_compile_and_call` in torch/_higher_order_ops/utils.py.

_COMPILED = ("cond", "switch", "while_loop", "scan", "map")  # modules of torch's that compile their operator
_OPERATORS = ("cond", "switch", "while_loop", "scan", "map_impl")

Functions = Mapping[str, Callable[..., Any]]


@contextlib.contextmanager
def control_flow_by(load: Callable[[], Functions]) -> Iterator[None]:
    """Call functions of ours in the place of torch's control flow operators, and compile none of them.

    Args:
        load: return the functions by the names in `torch.ops.higher_order`, and what to make of
            ``generic_associative_scan``. It is called where the model calls such an operator. The functions get the
            operator's arguments, and `nested`: the user's functions give structures, and a structure is expected. Else
            the operator was called itself, whose functions give flat lists.
    """
    if not has("_hop_compile_and_call", "generic_associative_scan"):
        yield
        return
    with contextlib.ExitStack() as stack:
        stack.enter_context(patched("_hop_compile_and_call", lambda own: _called_plainly(own, load)))
        stack.enter_context(patched("generic_associative_scan", lambda own: _loaded_late(own, load)))
        stack.enter_context(_with_numbers(load))
        for name in _OPERATORS:
            operator = getattr(torch.ops.higher_order, name, None)  # torch.switch is new in 2.15
            if operator is not None:
                stack.enter_context(_called_as(type(operator), name, load))
        yield


def _functions(load: Callable[[], Functions]) -> Functions:
    """Return our functions; none where they need a part of torch that is not there."""
    try:
        return load()
    except MissingPartError:
        return {}


def _is_traced() -> bool:
    """Check that torch.jit.trace runs, which would follow one branch: there torch's own functions refuse."""
    return bool(torch.jit.is_tracing())  # type: ignore[attr-defined]


def _called_plainly(own: Any, load: Callable[[], Functions]) -> Any:
    def call(fn: Any, args: Any, kwargs: Any = None) -> Any:
        known = fn.__module__.rpartition(".")[2] in _COMPILED and not _is_traced()
        if not known or not _functions(load):
            return own(fn, args, kwargs)
        _from_function.append(True)
        return fn(*args, **(kwargs or {}))

    return call


_from_function: list[bool] = []  # not empty between the call of a function of torch's and that of its operator


@contextlib.contextmanager
def _with_numbers(load: Callable[[], Functions]) -> Iterator[None]:
    """Let torch.cond take numbers among its operands, as it does where a model is compiled."""
    own = torch.cond

    def cond(pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
        ours = None if _is_traced() else _functions(load).get("cond")
        if ours is None or all(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(operands)):
            return own(pred, true_fn, false_fn, operands)
        return ours(pred, true_fn, false_fn, operands, nested=True)

    torch.cond = cond
    try:
        yield
    finally:
        torch.cond = own


def _loaded_late(own: Any, load: Callable[[], Functions]) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        ours = _functions(load).get("generic_associative_scan")
        return (own if ours is None else ours(own))(*args, **kwargs)

    return call


@contextlib.contextmanager
def _called_as(kind: Any, name: str, load: Callable[[], Functions]) -> Iterator[None]:
    """Make calls of an operator calls of our function."""
    own = kind.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        nested = bool(_from_function)
        _from_function.clear()
        ours = _functions(load).get(name)
        if ours is None or any(isinstance(leaf, torch.Tensor) and is_batched(leaf) for leaf in tree_leaves(args)):
            return own(self, *args, **kwargs)  # torch has rules for some of them inside of torch.vmap
        if not nested and not torch.compiler.is_exporting():
            return own(self, *args, **kwargs)
        return ours(*args, **kwargs, nested=nested)

    kind.__call__ = call
    try:
        yield
    finally:
        kind.__call__ = own
