"""The comparison by layers: where the error is introduced, the node that makes it, and files that show it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir

from torchport.comparison.divergence import Region
from torchport.comparison.intermediates import Layered, Slices
from torchport.comparison.layer_scan import Layers, Reference, look
from torchport.comparison.pair_onnx import OnnxReference, alike
from torchport.comparison.pair_torch import Pair, Pairing, partner_arrays
from torchport.comparison.regions import Narrowed, narrowed
from torchport.comparison.result import Divergence, Layer, State
from torchport.comparison.sides import OnnxSide, SavedSide, Side, TorchSide
from torchport.editing.extract import cut
from torchport.errors import InputError, SaveError
from torchport.files import onnx_files
from torchport.inputs.samples import save_sample
from torchport.irtools.metadata import origin_of
from torchport.irtools.names import name_of, where
from torchport.irtools.node_reader import is_constant
from torchport.irtools.traversal import used_values
from torchport.numerics.check import QuickCheck, quick_check
from torchport.numerics.error_metrics import measure
from torchport.numerics.tolerance import Tolerance
from torchport.results import Finding
from torchport.tensors import Array

Limits = Callable[[str, str], Tolerance]


@dataclasses.dataclass(frozen=True)
class Found:
    layers: tuple[Layer, ...] = ()
    divergence: Divergence | None = None
    findings: tuple[Finding, ...] = ()


class TorchReference:
    """A PyTorch model as the reference: it is run once for each slice of the candidate's tensors."""

    def __init__(self, side: TorchSide, feeds: Mapping[str, Array], limits: Limits) -> None:
        self._side, self._feeds, self._limits = side, feeds, limits

    def _ask(self) -> None:
        self._side.ask(self._feeds)

    def pairs(self, slices: Slices) -> Mapping[str, Pair]:
        return Pairing(slices, self._ask, self._side.root, lambda dtype: self._limits(dtype, "")).pairs()

    def fetch(self, keys: Mapping[str, Any]) -> Mapping[str, Array]:
        return partner_arrays(keys, self._ask, self._side.root)


class SavedReference:
    """Tensors saved elsewhere, by name."""

    def __init__(self, side: SavedSide, limits: Limits) -> None:
        self._arrays, self._limits = side.tensors, limits

    def pairs(self, slices: Slices) -> Mapping[str, Pair]:
        return {n: self._pair(n, array) for arrays in slices.only(self._arrays) for n, array in arrays.items()}

    def _pair(self, name: str, array: Array) -> Pair:
        own = self._arrays[name]
        limit = self._limits(own.dtype.name, array.dtype.name)
        return Pair(f"'{name}'", quick_check(*alike(own, array), limit), name)

    def fetch(self, keys: Mapping[str, Any]) -> Mapping[str, Array]:
        return {name: self._arrays[key] for name, key in keys.items()}


def find_layers(
    sides: tuple[Side, Side],
    feeds: Mapping[str, Array],
    limits: Limits,
    *,
    agree: list[str],
    isolate: bool,
    budget: int,
    save: str | os.PathLike[str] | None,
    say: Callable[[str], None],
) -> Found:
    """Compare every tensor of the candidate, an ONNX model, with the reference's."""
    candidate_side = sides[1]
    if not isinstance(candidate_side, OnnxSide):
        raise InputError(
            "layers are compared where the second side is an ONNX model",
            where=f"the second side is {candidate_side.label}",
            next_step="put the ONNX model second" if isinstance(sides[0], OnnxSide) else "export it first",
        )
    with contextlib.ExitStack() as stack:
        candidate = stack.enter_context(Layered(candidate_side.model, candidate_side.engine, candidate_side.libraries))
        reference = _reference(sides[0], candidate, feeds, limits, stack)
        own = candidate_side.fit(feeds)
        found = look(candidate, reference, own, budget=budget, agree=agree, say=say)
        layers = found.layers
        if isolate:
            from torchport.comparison.layer_scan import isolated

            alone = isolated(candidate, reference, found.pairs, own, budget=budget, limits=limits, say=say)
            layers = tuple(_alone(x, alone.get(x.tensor)) for x in layers)
        wrong = [n for n in candidate.outputs if n not in agree]
        hidden = [n for n in wrong if n in found.pairs and found.pairs[n].check.ok]
        findings = [Finding(_UNLIKE)] if found.unlike else []
        if hidden:
            findings.append(Finding(_HIDDEN.format(engine=candidate_side.engine, name=hidden[0])))
        if found.region is None or (hidden and hidden == wrong):
            if hidden != wrong:
                findings.append(Finding(_UNPAIRED))
            return Found(layers, None, tuple(findings))
        narrow = Narrowed(found.region)
        side = sides[0]
        if len(found.region.nodes) > 1 and isinstance(side, TorchSide) and side.root is not None:
            say(f"narrowing {len(found.region.nodes)} nodes")
            right = {n for n, p in found.pairs.items() if p.check.ok}
            ask = functools.partial(side.ask, feeds)
            narrow = narrowed(found.region, candidate, side.root, ask, own, right=right, limits=limits, budget=budget)
            findings += [Finding(f"{_LISTED}: {reason}") for reason in narrow.obstacles[-1:]]
            layers = _with_states(layers, found.region, narrow.region)
        show = functools.partial(_divergence, candidate, reference, found, narrow.region, own, limits)
        try:
            divergence = show(save)
        except SaveError as error:
            findings.append(Finding(error.what))
            divergence = show(None)
        return Found(layers, divergence, tuple(findings))


_UNPAIRED = "the outputs differ, but no tensor inside could be paired with one that differs"
_HIDDEN = (
    "output '{name}' differs when {engine} runs the model as it is, and agrees when every tensor is looked at: the "
    "error is made where {engine} fuses nodes; compare with another engine, or with its optimizations off"
)
_LISTED = "which of the nodes it is could not be told"
_UNLIKE = (
    "the outputs agree, but most tensors inside differ from those they were compared with: the models compute the same "
    "in another way, or their tensors could not be told apart; what the layers say is no evidence of an error"
)


def _alone(layer: Layer, seen: QuickCheck | None) -> Layer:
    """What is off with the reference's inputs makes an error of its own, whatever else came in."""
    own = layer.state == "propagated" and seen is not None and not seen.ok
    return dataclasses.replace(layer, isolated=seen, state="introduced" if own else layer.state)


def _with_states(layers: tuple[Layer, ...], before: Region, after: Region) -> tuple[Layer, ...]:
    """The layers, now that it is known which nodes of a region make no error."""
    if len(after.nodes) > 1:
        return layers
    first = name_of(after.nodes[0])
    order = [name_of(n) for n in before.nodes]
    place = order.index(first)
    states: dict[str, State] = {first: "introduced"}
    states.update((name, "propagated") for name in order[place + 1 :])

    def state(layer: Layer) -> State:
        return states.get(layer.node, layer.state)

    return tuple(dataclasses.replace(x, state=state(x)) for x in layers)


def _reference(
    side: Side, candidate: Layered, feeds: Mapping[str, Array], limits: Limits, stack: contextlib.ExitStack
) -> Reference:
    if isinstance(side, TorchSide):
        return TorchReference(side, feeds, limits)
    if isinstance(side, OnnxSide):
        layered = stack.enter_context(Layered(side.model, side.engine, side.libraries))
        return OnnxReference(layered, candidate.given, side.fit(feeds), limits)
    assert isinstance(side, SavedSide)
    return SavedReference(side, limits)


def _divergence(
    candidate: Layered,
    reference: Reference,
    found: Layers,
    region: Region,
    feeds: Mapping[str, Array],
    limits: Limits,
    save: str | os.PathLike[str] | None,
) -> Divergence:
    node = region.nodes[0]
    names = [n for n in inputs_of(node) if n in candidate.values]
    shown = str(region.end.name)
    inputs = {n: _seen(found.pairs[n].check) if n in found.pairs else "has no partner" for n in names}
    both = _both(candidate, reference, found.pairs.get(shown), shown, feeds)
    figures = None
    if both is not None:
        own, array = alike(*both)
        figures = measure(shown, own, array, tolerance=limits(own.dtype.name, both[1].dtype.name))
    files: tuple[str, ...] = ()
    if save is not None:
        inner = candidate.run(feeds, names) if names else {}
        given = {n: inner[n] if n in inner else feeds[n] for n in inputs_of(node) if n in inner or n in feeds}
        expected = {shown: both[0]} if both is not None and len(region.nodes) == 1 else {}
        files = save_node(candidate.model, node, Path(save), given, expected)
    return Divergence(
        name_of(node),
        (f"{node.domain}::" if node.domain else "") + node.op_type,
        origin_of(node),
        tuple(name_of(n) for n in region.nodes),
        shown,
        figures,
        inputs,
        files,
        found.pairs[shown].partner if shown in found.pairs else "",
    )


def _both(
    candidate: Layered, reference: Reference, pair: Pair | None, name: str, feeds: Mapping[str, Array]
) -> tuple[Array, Array] | None:
    """The reference's tensor and the candidate's."""
    if pair is None or pair.arrays is not None:
        return pair.arrays if pair is not None else None
    return reference.fetch({name: pair.key})[name], candidate.run(feeds, [name])[name]


def _seen(check: QuickCheck) -> str:
    if check.max_abs == 0:
        return "agrees, exact"
    return f"{'agrees' if check.ok else 'differs'}, max abs {check.max_abs:.1e}"


# One node and its data in two files, so that anyone can run it again.


def inputs_of(node: ir.Node) -> list[str]:
    """What a node gets from other nodes or from the model's inputs: no weights."""
    found = [v for v in used_values(node) if not is_constant(v)]
    return [str(v.name) for v in dict.fromkeys(found)]


def make_folder(folder: str | os.PathLike[str]) -> None:
    """Make a folder, before the work whose result is to go there.

    Raises:
        SaveError: it cannot be made.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SaveError(
            f"the folder '{folder}' cannot be made: {error.strerror}", next_step="choose another folder"
        ) from error


def save_node(
    model: ir.Model, node: ir.Node, folder: Path, inputs: Mapping[str, Array], expected: Mapping[str, Array]
) -> tuple[str, str]:
    """Write `node.onnx` and `node.npz`: the node alone, what it gets, and under ``expected.`` what it should give.

    Raises:
        SaveError: they cannot be written, or the node does not make a model of its own.
    """
    make_folder(folder)
    part = _node_alone(model, node)
    name = "".join(c if c.isalnum() or c in "-_." else "_" for c in name_of(node)) or "node"
    target, data = folder / f"{name}.onnx", folder / f"{name}.npz"
    known = all(v.shape is not None for v in (*part.graph.inputs, *part.graph.outputs))
    onnx_files.save(
        part, target, check=known
    )  # what a loop gives may have no shape: engines run that, the checker refuses
    save_sample(data, {**inputs, **{f"expected.{k}": v for k, v in expected.items()}})
    return str(target), str(data)


def _node_alone(model: ir.Model, node: ir.Node) -> ir.Model:
    try:
        return cut(model, inputs_of(node), [str(v.name) for v in node.outputs if v.name])
    except InputError as error:
        raise SaveError(f"{where(node)} cannot be saved alone: {error.what}") from error
