"""Which of several nodes makes the error, where one PyTorch operator became many.

PyTorch shows no steps inside an operator. So the module around it is exported again, alone, on the inputs it was seen
to get, and the two graphs are held against each other node by node.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import onnx_ir as ir
import torch

from torchport.comparison.divergence import Region
from torchport.comparison.intermediates import Layered
from torchport.comparison.layer_scan import look
from torchport.comparison.pair_onnx import OnnxReference
from torchport.conversion.export import export
from torchport.editing.extract import cut
from torchport.errors import TorchportError
from torchport.irtools.metadata import origin_of
from torchport.numerics.check import quick_check
from torchport.numerics.tolerance import Tolerance
from torchport.tensors import Array, to_numpy
from torchport.torch_compat.tracing import tree_flatten, tree_unflatten

_HELD = 3  # times its weights is what exporting a module takes


@dataclasses.dataclass(frozen=True)
class Narrowed:
    """Fewer nodes of a region, or why there are not fewer.

    Attributes:
        obstacles: modules that could not be asked, each with the reason.
    """

    region: Region
    obstacles: tuple[str, ...] = ()


def narrowed(
    region: Region,
    candidate: Layered,
    root: torch.nn.Module,
    ask: Callable[[], Any],
    feeds: Mapping[str, Array],
    *,
    right: Collection[str],
    limits: Callable[[str, str], Tolerance],
    budget: int,
) -> Narrowed:
    """The region, or fewer of its nodes if a fresh export of the module around them tells which.

    `right` names the candidate's tensors that agree with PyTorch's.
    """
    best = region
    obstacles: list[str] = []
    for path, called in _called_once(root, origin_of(region.nodes[-1]).module, ask):
        named = f"the module '{path}'" if path else "the model"
        if isinstance(called, int):
            obstacles.append(f"{named} is called {called} times")
            continue
        if _HELD * _weight_bytes(called) > budget:
            obstacles.append(f"{named} is too large to be exported within the memory given")
            break
        try:
            fresh = export(called, called.given, allow_unproven=True)
            part = _part(candidate, path)
        except TorchportError as error:
            obstacles.append(f"{named} cannot be exported alone: {error.what}")
            continue  # a module around it may
        found = _looked(fresh.model, part, called.given, candidate, feeds, right, limits, budget)
        kept = {str(n.name) for n in found.nodes} if found is not None else set()
        if kept and len(kept) < len(best.nodes) and kept <= {str(n.name) for n in best.nodes}:
            best = Region(tuple(n for n in best.nodes if str(n.name) in kept), region.end)
        if len(best.nodes) == 1:
            return Narrowed(best)
    return Narrowed(best, tuple(obstacles))


def _weight_bytes(module: torch.nn.Module) -> int:
    return sum(t.nbytes for t in (*module.parameters(), *module.buffers()))


def _part(candidate: Layered, path: str) -> Layered:
    """The candidate's nodes of a module, with no outputs but those that others use."""
    plain = candidate.model.clone()
    outputs = [v for v in plain.graph.outputs if v.name in candidate.outputs]
    plain.graph.outputs.clear()
    plain.graph.outputs.extend(outputs)
    return Layered(cut(plain, module=path) if path else plain, candidate.session.engine, candidate.libraries)


def _looked(
    fresh: ir.Model,
    part: Layered,
    given: tuple[torch.Tensor, ...],
    candidate: Layered,
    feeds: Mapping[str, Array],
    right: Collection[str],
    limits: Callable[[str, str], Tolerance],
    budget: int,
) -> Region | None:
    reference = Layered(fresh, candidate.session.engine, candidate.libraries)
    theirs = _as_inputs(reference, given)
    if theirs is None:
        return None
    wanted = [i.name for i in part.session.inputs]
    inner = [n for n in wanted if n not in feeds]
    ours = {**{n: feeds[n] for n in wanted if n in feeds}, **(candidate.run(feeds, inner) if inner else {})}
    strange = [n for n, a in ours.items() if not any(_same(a, g) for g in theirs.values())]
    if not set(strange) <= {*right, *feeds}:
        return (
            None  # the error came in from outside; what is right there but is not the module's, a node took by mistake
        )
    against = OnnxReference(reference, part.given, theirs, limits)
    return look(part, against, ours, budget=budget, agree=[]).region


def _as_inputs(reference: Layered, given: tuple[torch.Tensor, ...]) -> dict[str, Array] | None:
    """What a module is called with, by the names of its export's inputs; None if it is not clear which is which."""
    infos = reference.session.inputs
    if len(given) != len(infos):
        return None
    found = {i.name: to_numpy(t) for i, t in zip(infos, given, strict=True)}
    return found if all(found[i.name].dtype.name == i.dtype for i in infos) else None


def _same(a: Array, b: Array) -> bool:
    return (a.shape, a.dtype) == (b.shape, b.dtype) and quick_check(b, a).ok


class _Called(torch.nn.Module):
    """A module as it was called, to be called again with its tensors: each once, where it was given in several places.

    Args:
        module: the module.
        arguments: positional ones and those by name.
    """

    def __init__(self, module: torch.nn.Module, arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
        super().__init__()
        self.module = module
        leaves, self._structure = tree_flatten(arguments)
        tensors = {id(leaf): leaf for leaf in leaves if isinstance(leaf, torch.Tensor)}
        order = list(tensors)
        self._leaves = [order.index(id(x)) if isinstance(x, torch.Tensor) else (x,) for x in leaves]
        self.given = tuple(t.detach().clone() for t in tensors.values())

    def forward(self, *tensors: torch.Tensor) -> Any:
        leaves = [tensors[x] if isinstance(x, int) else x[0] for x in self._leaves]
        args, kwargs = tree_unflatten(leaves, self._structure)
        return self.module(*args, **kwargs)


def _called_once(root: torch.nn.Module, path: str, ask: Callable[[], Any]) -> Iterator[tuple[str, _Called | int]]:
    """The modules around `path`, innermost first, as they are called in a run; how often, if it is not once."""
    parts = path.split(".") if path else []
    around = [".".join(parts[:n]) for n in range(len(parts), -1, -1)]
    first: dict[str, _Called] = {}
    count = collections.Counter[str]()

    def note(place: str, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        count[place] += 1
        if place not in first:
            first[place] = _Called(module, (args, kwargs))

    modules = [(p, root.get_submodule(p)) for p in around]
    handles = [m.register_forward_pre_hook(functools.partial(note, p), with_kwargs=True) for p, m in modules]
    try:
        ask()
    finally:
        for handle in handles:
            handle.remove()
    for place in (p for p in around if count[p]):
        yield place, first[place] if count[place] == 1 else count[place]
