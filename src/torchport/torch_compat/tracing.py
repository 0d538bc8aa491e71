"""Modes and structures of torch's tracer."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from torchport.torch_compat.parts import has, part


def fake_mode() -> Any:
    """Return the mode in which torch.export runs the model, with its sizes."""
    mode = part("detect_fake_mode")()
    assert mode is not None, "only under torch.export"
    return mode


def real_tensors() -> contextlib.AbstractContextManager[Any]:
    """Leave the capture for a while: tensors made inside have numbers."""
    return part("unset_fake_temporarily")()


def disable_proxy_modes_tracing() -> contextlib.AbstractContextManager[Any]:
    """Record nothing into the graph for a while."""
    return part("disable_proxy_modes_tracing")()


def function_modes() -> list[TorchFunctionMode]:
    """Return the modes that are active, without those of torch's tracer, which sets its own for each graph."""
    tracer = part("disable_proxy_modes_tracing").__module__
    return [mode for mode in part("_get_current_function_mode_stack")() if type(mode).__module__ != tracer]


def without_fake_cache() -> contextlib.AbstractContextManager[Any]:
    """Keep no results of operators on fake tensors for a while."""
    patch: contextlib.AbstractContextManager[Any] = part("dynamo_config").patch(fake_tensor_cache_enabled=False)
    return patch


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
