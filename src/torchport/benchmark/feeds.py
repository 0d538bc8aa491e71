"""The inputs that candidates run on: made from a model's signature at given sizes, or given by the user."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from torchport.engines.registry import DEFAULT
from torchport.engines.session import open_session
from torchport.errors import EngineError, InputError, OptionError, did_you_mean
from torchport.inputs.create import accepted, made_up
from torchport.irtools.dims import evaluated, names_in, roots_in
from torchport.irtools.metadata import read_bounds
from torchport.irtools.types import tensor_infos
from torchport.results import TensorInfo
from torchport.tensors import Array, to_numpy


def inputs_of(model: ir.Model) -> tuple[TensorInfo, ...]:
    """Return the inputs that a caller gives."""
    return tensor_infos(v for v in model.graph.inputs if not v.is_initializer())


def feeds_for(
    model: ir.Model, path: str, inputs: Any, at: Mapping[str, int], libraries: Sequence[str]
) -> dict[str, Array]:
    """Return the inputs by name.

    Args:
        model: the model.
        path: its file.
        inputs: what the user gives, in order or by name; None to make some.
        at: sizes of dynamic dimensions to make inputs at.
        libraries: operator libraries that the model needs.
    """
    infos = inputs_of(model)
    if inputs is not None:
        if at:
            raise OptionError("inputs are given, and sizes to make some at", next_step="leave --at or --input out")
        return _by_name(inputs, infos)
    sized = at_sizes(infos, at, model)
    roots = roots_in(model)
    try:
        session = open_session(path, DEFAULT, libraries=libraries)
    except EngineError:  # its row will say why; another engine may run the model
        arrays = made_up(sized, roots=roots)
    else:
        arrays = accepted(sized, lambda given: session(*given), roots)
    return {info.name: array for info, array in zip(infos, arrays, strict=True)}


def _by_name(inputs: Any, infos: Sequence[TensorInfo]) -> dict[str, Array]:
    given = inputs if isinstance(inputs, Mapping) else dict(zip([i.name for i in infos], _tuple(inputs), strict=False))
    if set(given) != {info.name for info in infos}:
        raise InputError(
            f"the inputs given are {', '.join(given) or 'none'}",
            where=f"the model takes {', '.join(map(str, infos))}",
            next_step="give each input of the model",
        )
    return {n: to_numpy(v) if hasattr(v, "detach") else np.asarray(v) for n, v in given.items()}


def _tuple(inputs: Any) -> tuple[Any, ...]:
    return tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)


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
