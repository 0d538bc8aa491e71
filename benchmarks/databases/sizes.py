"""Which axes of a call may vary, found by asking PyTorch, and calls at other sizes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from cases import Call, Case
from torch.utils import _pytree as pytree

Axes = list[dict[int, Any]]  # for each tensor its dynamic axes; equal entries are one dimension


def with_every_axis(model: torch.nn.Module, call: Call) -> Case:
    """Every axis that PyTorch lets vary is dynamic, those of one size in two tensors as one dimension if possible."""
    return _with_axes(model, call, lambda tensor: range(tensor.dim()))


def with_first_axis(model: torch.nn.Module, call: Call) -> Case:
    """The first axes are dynamic, as far as PyTorch lets them vary."""
    return _with_axes(model, call, lambda tensor: range(min(tensor.dim(), 1)))


def with_declared_axes(model: torch.nn.Module, call: Call, dynamic: Any) -> Case:
    """The axes are dynamic that the database says, in torch.export's form."""
    nodes = _bound(model, call)
    given = dynamic if isinstance(dynamic, Mapping) else dict(zip(nodes, dynamic, strict=True))
    dims: dict[str, Any] = {}  # those of one name are one
    axes = [axes for name, node in nodes.items() for axes in _declared(node, given.get(name), dims)]
    return Case(model, call, dynamic, tuple(_unseen(model, call, axes)))


def _declared(node: Any, spec: Any, dims: dict[str, Any]) -> Iterator[dict[int, Any]]:
    """The axes of each tensor below an argument; an unnamed dimension is a new one each time."""
    if isinstance(node, torch.Tensor):
        found = {axis: dim for axis, dim in (spec or {}).items() if dim is not None}
        named = {a: dims.setdefault(getattr(d, "__name__", str(len(dims))), d) for a, d in found.items()}
        yield {a: d if isinstance(d, torch.export.Dim) else object() for a, d in named.items()}
    elif isinstance(node, (list, tuple)):
        for place, child in enumerate(node):
            yield from _declared(child, spec[place] if spec and place < len(spec) else None, dims)
    elif isinstance(node, dict):
        for key, child in node.items():
            yield from _declared(child, spec[key] if spec else None, dims)


def _with_axes(model: torch.nn.Module, call: Call, chosen: Callable[[torch.Tensor], range]) -> Case:
    tensors = call.tensors()
    by_size: dict[int, Axes] = {}
    for place, tensor in enumerate(tensors):
        for axis in chosen(tensor):
            groups = by_size.setdefault(tensor.shape[axis], [{} for _ in tensors])
            groups[place][axis] = f"size_{tensor.shape[axis]}"
    axes: Axes = [{} for _ in tensors]
    for together in (by_size[size] for size in by_size if size):  # an empty axis has no rows to repeat
        alone = [_only(together, p, a) for p, found in enumerate(together) for a in found]
        ways = [alone, [together]] if any(len(found) > 1 for found in together) else [[together], alone]
        named = next((way for way in ways if _accepted(model, call, way) == way), _accepted(model, call, alone))
        for found in named:
            for place, names in enumerate(found):
                axes[place] |= names
    return Case(model, call, _tree(model, call, axes), tuple(_unseen(model, call, axes)))


def _only(together: Axes, place: int, axis: int) -> Axes:
    return [{axis: f"size_{p}_{axis}"} if p == place else {} for p in range(len(together))]


def _accepted(model: torch.nn.Module, call: Call, groups: list[Axes]) -> list[Axes]:
    return [axes for axes in groups if all(_answers(model, _resized(call, axes, by, 0)) for by in (1, 3))]


def _answers(model: torch.nn.Module, call: Call | None) -> bool:
    if call is None:
        return False
    try:
        Case(model, call).answer(call)
    except Exception:  # noqa: BLE001 - a model may refuse an input with any error
        return False
    return True


def _unseen(model: torch.nn.Module, call: Call, axes: Axes) -> Iterator[Call]:
    """Other values at the same sizes, and other sizes of all the dimensions and of each."""
    dims = list(dict.fromkeys(dim for found in axes for dim in found.values()))
    moves: list[dict[Any, int | None]] = [{}]
    moves += [dict.fromkeys(dims, 3), *({dim: by} for dim in dims for by in (2, None))] if dims else []
    for seed, move in enumerate(moves, start=1):
        moved = _resized(call, axes, move, seed)
        if moved is not None and _answers(model, moved):
            yield moved


def _resized(call: Call, axes: Axes, by: int | Mapping[Any, int | None], seed: int) -> Call | None:
    """The call with some dimensions larger by a number, or of size one; None where a bound forbids it."""
    generator = torch.Generator().manual_seed(seed)
    leaves, spec = pytree.tree_flatten(call)
    places = [n for n, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    for place, found in zip(places, axes, strict=True):
        tensor = leaves[place].detach()
        for axis, dim in found.items():
            moved = by if isinstance(by, int) else by.get(dim, 0)
            size = 1 if moved is None else tensor.shape[axis] + moved
            if not getattr(dim, "min", 0) <= size <= getattr(dim, "max", 2**62):
                return None
            tensor = tensor if moved == 0 else _drawn(tensor, axis, size, generator)
        leaves[place] = tensor * (1 + 0.1 * seed) if tensor.is_floating_point() and _free(tensor) else tensor.clone()
    return pytree.tree_unflatten(leaves, spec)


def _drawn(tensor: torch.Tensor, axis: int, size: int, generator: torch.Generator) -> torch.Tensor:
    """Some of a tensor's rows along an axis; ones where it has none."""
    if not tensor.shape[axis]:
        return tensor.new_ones((*tensor.shape[:axis], size, *tensor.shape[axis + 1 :]))
    return tensor.index_select(axis, torch.randint(tensor.shape[axis], (size,), generator=generator))


def _free(tensor: torch.Tensor) -> bool:
    """Numbers of both signs that are not whole: no probabilities, targets or masks, which a change might spoil."""
    return bool((tensor < 0).any()) and bool((tensor > 0).any()) and bool((tensor != tensor.round()).any())


def _bound(model: torch.nn.Module, call: Call) -> dict[str, Any]:
    signature = inspect.signature(model.forward)
    found = dict(signature.bind(*call.args, **call.kwargs).arguments)
    for name, parameter in signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD and name in found:
            found |= found.pop(name)
    return found


def _tree(model: torch.nn.Module, call: Call, axes: Axes) -> Any:
    """The axes nested like the arguments, by parameter."""
    if not any(axes):
        return None
    waiting = iter(axes)
    dims: dict[str, torch.export.Dim] = {}

    def leaf(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return None
        return {axis: dims.setdefault(name, torch.export.Dim(name)) for axis, name in next(waiting).items()} or None

    return {name: pytree.tree_map(leaf, value) for name, value in _bound(model, call).items()}
