"""The inputs that candidates run on: made from a model's signature at given sizes, or given by the user."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from torchport.benchmark.children import Candidate, Worker
from torchport.benchmark.command_process import CommandError
from torchport.benchmark.preparation import Common
from torchport.engines.registry import DEFAULT
from torchport.errors import EngineError, InputError, OptionError, did_you_mean
from torchport.inputs.binding import Binder
from torchport.inputs.create import accepted, made_up
from torchport.irtools.dims import evaluated, names_in, roots_in
from torchport.irtools.metadata import read_bounds
from torchport.irtools.types import tensor_infos
from torchport.results import Bound, TensorInfo
from torchport.tensors import Array

_PATIENCE = 60.0  # seconds for trying inputs


def inputs_of(model: ir.Model) -> tuple[TensorInfo, ...]:
    """Return the inputs that a caller gives."""
    return tensor_infos(v for v in model.graph.inputs if not v.is_initializer())


def feeds_for(
    model: ir.Model, path: str, inputs: Any, sizes: Sequence[Mapping[str, int]], common: Common
) -> list[dict[str, Array]]:
    """Return the inputs by name, once for each set of sizes.

    Args:
        model: the model.
        path: its file.
        inputs: what the user gives, in order or by name; None to make some.
        sizes: of dynamic dimensions to make inputs at.
        common: the libraries that the model needs.
    """
    infos = inputs_of(model)
    if inputs is not None:
        if any(sizes):
            raise OptionError("inputs are given, and sizes to make some at", next_step="leave --at or --input out")
        return [given_feeds(inputs, infos, read_bounds(model.metadata_props))]
    sized = [at_sizes(infos, at, model) for at in sizes]
    candidate = Candidate(DEFAULT, "engine", path, engine=DEFAULT, **common.fields)
    try:
        return tried_feeds(candidate, sized, roots_in(model), limit=_PATIENCE)
    except CommandError:  # its row will say why; another engine may run the model
        return [_named(infos, made_up(infos, roots=roots_in(model))) for infos in sized]


def tried_feeds(
    candidate: Candidate, sized: Sequence[Sequence[TensorInfo]], roots: Sequence[str], *, limit: float
) -> list[dict[str, Array]]:
    """Return made-up inputs that a model runs on, as a process of its own finds out: it may crash the engine, or hang.

    Args:
        candidate: the model, in the engine that tries.
        sized: the inputs of the model, once for each set of sizes.
        roots: names that only expressions in the shapes have.
        limit: the seconds that it may take in all.

    Raises:
        InputError: the model refuses all inputs that were made up.
        CommandError: the process cannot open the model, or it died.
    """
    with Worker(candidate, limit=limit) as worker:
        worker.start()
        worker.started()
        worker.open()
        return [_named(infos, accepted(infos, functools.partial(_run, worker, infos), roots)) for infos in sized]


def _named(infos: Sequence[TensorInfo], arrays: Sequence[Array]) -> dict[str, Array]:
    return {info.name: array for info, array in zip(infos, arrays, strict=True)}


def _run(worker: Worker, infos: Sequence[TensorInfo], arrays: Sequence[Array]) -> None:
    """Run a model on inputs.

    Raises:
        EngineError: it does not take them, others may do.
        CommandError: the process died.
    """
    try:
        worker.run("tried", _named(infos, arrays))
    except CommandError as error:
        if not worker.alive:
            raise
        raise EngineError(error.facts["reason"], node=error.facts.get("node")) from error


def given_feeds(inputs: Any, infos: Sequence[TensorInfo], bounds: Mapping[str, Bound]) -> dict[str, Array]:
    """Return the inputs that the user gives, by name, once they fit the model.

    Args:
        inputs: by name, in order, or the only one.
        infos: the inputs of the model.
        bounds: sizes that the model is good for, by dimension.

    Raises:
        InputError: one is missing or one too many, or of another dtype or shape.
    """
    given = inputs if isinstance(inputs, (Mapping, tuple, list)) else (inputs,)
    if not isinstance(given, Mapping):
        if len(given) != len(infos):
            raise InputError(
                f"{len(given)} inputs given, the model has {len(infos)}",
                where=", ".join(map(str, infos)),
                next_step="give one array or tensor for each, in this order",
            )
        given = dict(zip([info.name for info in infos], given, strict=True))
    return Binder(infos, bounds).bind(given)[0]


def at_sizes(infos: Sequence[TensorInfo], at: Mapping[str, int], model: ir.Model) -> list[TensorInfo]:
    """Return the inputs with their dynamic dimensions at the sizes that the user names.

    Raises:
        OptionError: there is no such dimension, or it cannot have that size.
    """
    texts = [dim for info in infos for dim in info.shape or () if isinstance(dim, str)]
    known = {name for text in texts for name in (names_in(text) or {text})} | set(texts)
    bounds = read_bounds(model.metadata_props)
    for name, size in at.items():
        if name not in known:
            fixed = "every dimension of the model is fixed" if not known else f"it has {', '.join(sorted(known))}"
            raise OptionError(
                f"the model has no dimension '{name}'",
                where=f"--at {name}={size}; {', '.join(map(str, infos))}",
                next_step=did_you_mean(name, known, fixed, most=1),
            )
        if size < 0 or (name in bounds and not bounds[name].allows(size)):
            raise OptionError(
                f"dimension '{name}' cannot be {size}"
                + (f": the model was exported for {name} {bounds[name]}" if name in bounds else ""),
                where=f"--at {name}={size}",
                next_step="give a size that the model is good for",
            )
    return [dataclasses.replace(info, shape=_sized(info.shape, at)) for info in infos]


def _sized(shape: tuple[int | str | None, ...] | None, at: Mapping[str, int]) -> tuple[int | str | None, ...] | None:
    return None if shape is None else tuple(evaluated(dim, at) if isinstance(dim, str) else dim for dim in shape)
