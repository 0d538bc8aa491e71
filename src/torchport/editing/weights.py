"""Give weights other numbers, and turn weights into inputs and inputs into weights."""

from __future__ import annotations

import contextlib
import json
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from torchport.editing.cleanup import take_out
from torchport.editing.rename import expanded
from torchport.editing.retype import infer_again
from torchport.editing.selection import Tensor, tensor_name
from torchport.editing.transaction import attempt, in_place, unproves
from torchport.errors import FileError, InputError, close_names
from torchport.inputs.arrays import reading, same_dtype, tensor_for
from torchport.irtools.dims import Dims, change_dims, is_placeholder
from torchport.irtools.inference import inferred
from torchport.irtools.metadata import ANNOTATION
from torchport.irtools.names import unknown, where
from torchport.irtools.node_reader import is_constant
from torchport.irtools.traversal import all_values, graphs, own_values
from torchport.tensors import Array, is_torch, numpy_dtype, to_numpy


@in_place
@unproves
def set_weights(
    model: ir.Model,
    source: str | os.PathLike[str] | Mapping[str | ir.Value, Any],
    *,
    names: Mapping[str, str] | None = None,
) -> int:
    """Give weights other numbers, by name. Weights that the source does not have stay.

    Only names, shapes and dtypes that are the same will do: an export may have transposed a weight or folded several
    into one, so that PyTorch's own does not fit. A ``.safetensors`` is mapped into memory, and an array or tensor
    is used where it is: do not write to them before the model is saved.

    Args:
        model: changed in place.
        source: a ``.safetensors``, ``.npz`` or ``.pt``, or arrays or tensors by weight or by its name: a state dict,
            say. A ``.pt`` is read with ``weights_only=True``.
        names: what a tensor of the source is called in the model, where that differs; ``{"model.*": "*"}`` too.

    Returns:
        How many weights were set.

    Raises:
        InputError: a tensor of the source is not in the model, or is of another shape or dtype. Counters of
            batches (``num_batches_tracked``), which no graph has, are passed over.

    Example:
        >>> tp.graph.set_weights(model, "finetuned.safetensors")
        >>> tp.graph.set_weights(model, net.state_dict())
    """
    weights = _weights(model)
    given = source if not isinstance(source, Mapping) else {tensor_name(model, k): v for k, v in source.items()}
    with _opened(given) as tensors:
        targets = _targets(list(tensors), weights, names or {})
        new = {name: _fitted(weights[name][0], tensors[key], key) for key, name in targets.items()}
    for name, tensor in new.items():
        for value in weights[name]:
            value.const_value = tensor
    return len(new)


def _weights(model: ir.Model) -> dict[str, list[ir.Value]]:
    found: dict[str, list[ir.Value]] = {}
    for graph in graphs(model):
        for name, value in graph.initializers.items():
            found.setdefault(name, []).append(value)
    return found


@contextlib.contextmanager
def _opened(source: str | os.PathLike[str] | Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if isinstance(source, Mapping):
        yield source
        return
    path = Path(source)
    if path.suffix in (".pt", ".pth", ".bin"):
        yield _state_dict(path)
        return
    if path.suffix not in (".safetensors", ".npz"):
        raise InputError(
            f"weights come from a .safetensors, .npz or .pt, not from '{path.name}'",
            next_step="give arrays by name: set_weights(model, {name: array})",
        )
    with reading(path):
        opened = contextlib.nullcontext(_safetensors(path)) if path.suffix == ".safetensors" else np.load(path)
    with reading(path), opened as tensors:
        yield tensors


_SAVE_WEIGHTS = "save them with torch.save(model.state_dict(), path)"


def _state_dict(path: Path) -> dict[str, Any]:
    """The tensors of a PyTorch file; torch is imported for these files only."""
    import torch

    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise FileError("the file is missing", where=str(path), next_step="check the path") from error
    except Exception as error:  # torch.load has no class of error of its own
        raise FileError(
            "it holds no weights that can be read safely", where=str(path), next_step=_SAVE_WEIGHTS
        ) from error
    state = state.get("state_dict", state) if isinstance(state, dict) else state
    if not isinstance(state, dict) or not all(isinstance(v, torch.Tensor) for v in state.values()):
        raise FileError("it holds no state dict", where=str(path), next_step=_SAVE_WEIGHTS)
    return state


_SAFETENSORS = {
    "BOOL": "bool",
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "C64": "complex64",
}


def _safetensors(path: Path) -> dict[str, Array]:
    """The tensors of a file, mapped and not read; the library has checked that the header fits the file."""
    from safetensors import safe_open

    with safe_open(path, framework="numpy"):
        data = np.memmap(path, mode="r", dtype=np.uint8)
    (size,) = struct.unpack("<Q", data[:8].tobytes())
    header = json.loads(data[8 : 8 + size].tobytes())
    header.pop("__metadata__", None)
    return {name: _mapped(data[8 + size :], name, entry) for name, entry in header.items()}


def _mapped(data: Array, name: str, entry: Mapping[str, Any]) -> Array:
    if entry["dtype"] not in _SAFETENSORS:
        raise InputError(
            f"the tensor '{name}' is {entry['dtype']}, which is not supported", next_step="convert it first"
        )
    start, end = entry["data_offsets"]
    return data[start:end].view(numpy_dtype(_SAFETENSORS[entry["dtype"]])).reshape(entry["shape"])


def _targets(given: list[str], weights: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, str]:
    """For each tensor of the source the weight it is for."""
    renamed: dict[str, str] = {}
    for old, new in names.items():
        found = expanded(old, new, given)
        if not found:
            raise InputError(f"the source has no tensor '{old}'", next_step=_close([old], given))
        renamed.update(found)
    targets = {key: renamed.get(key, key) for key in given}
    strange = [k for k, t in targets.items() if t not in weights and not t.endswith("num_batches_tracked")]
    if strange or not any(t in weights for t in targets.values()):
        listed = ", ".join(f"'{targets[k]}'" for k in strange[:5]) + (", ..." if len(strange) > 5 else "")
        raise InputError(
            f"the model has no weights {listed}" if strange else "the source has none of the model's weights",
            next_step=_close([targets[k] for k in strange], list(weights)),
        )
    doubles = len(set(targets.values())) < len(targets)
    if doubles:
        raise InputError("two tensors of the source are for one weight", next_step="give each another name")
    return {key: name for key, name in targets.items() if name in weights}


def _close(names: list[str], known: list[str]) -> str:
    close = [c for n in names[:5] for c in close_names(n, known, most=1)]
    if close:
        return f"did you mean {', '.join(dict.fromkeys(close))}? `names` says what a tensor is called in the model"
    return f"it has {', '.join(known[:5])}{', ...' if len(known) > 5 else ''}" if known else "it has none"


def _fitted(value: ir.Value, given: Any, key: str) -> ir.TensorProtocol:
    tensor = value.const_value
    assert tensor is not None
    array = to_numpy(given) if is_torch(given) else np.asarray(given)
    if tensor.dtype == ir.DataType.STRING:
        raise InputError(f"the weight '{value.name}' holds texts", next_step="leave it out")
    array = same_dtype(array, tensor.dtype, f"weight '{value.name}'")
    if array.shape != tuple(tensor.shape.numpy()):
        raise InputError(
            f"the weight '{value.name}' is {list(tensor.shape.numpy())}, '{key}' of the source is {list(array.shape)}",
            next_step="give it in that shape; an export may have transposed or folded what PyTorch has",
        )
    return ir.Tensor(array, dtype=tensor.dtype, name=value.name, doc_string=tensor.doc_string)


# Turn weights into inputs, and inputs into weights.


# --- a weight becomes an input ----------------------------------------------------------------------------------------


@in_place
@unproves
def to_input(model: ir.Model, name: Tensor) -> int:
    """Make a weight, or what a Constant node gives, an input of the model. Its numbers are dropped, unread.

    An input that has a default value loses it, and must be given from then on.

    Args:
        model: changed in place.
        name: the tensor or its name; it may be inside a branch or body.

    Returns:
        1.

    Raises:
        InputError: there is no such constant, or it cannot be reached from outside.

    Example:
        >>> tp.graph.to_input(model, "anchors")
    """
    value = _constant(model, name)
    name = str(value.name)
    tensor = ir.convenience.get_const_tensor(value)
    assert tensor is not None
    node, new = value.producer(), value
    if node is not None:
        new = ir.Value(name=name, doc_string=value.doc_string, metadata_props=dict(value.metadata_props))
        if ANNOTATION in value.meta:
            new.meta[ANNOTATION] = value.meta[ANNOTATION]
        value.replace_all_uses_with(new, replace_graph_outputs=True)
        take_out([node])
    else:
        assert isinstance(value.graph, ir.Graph)
        del value.graph.initializers[name]
    new.const_value, new.type, new.shape = None, ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
    if not new.is_graph_input():
        model.graph.inputs.append(new)
    return 1


def _constant(model: ir.Model, given: Tensor) -> ir.Value:
    name = tensor_name(model, given)
    found = [v for v in all_values(model.graph) if v is given or v.name == given]
    if not found:
        raise _not_outside(model, name)
    value = found[0]
    if not is_constant(value):
        producer = value.producer()
        why = f"{where(producer)} computes it" if producer is not None else "it is an input already"
        raise InputError(f"'{name}' is no constant: {why}", next_step="name a weight, or what a Constant node gives")
    inside = value not in set(own_values(model.graph))
    if len(found) > 1 or (inside and value.is_graph_output()):
        why = "several branches have one of that name" if len(found) > 1 else "it is the result of a branch"
        raise InputError(
            f"'{name}' cannot become an input: {why}", next_step="rename one, or replace it by an Identity"
        )
    return value


def _not_outside(model: ir.Model, name: str) -> InputError:
    for function in model.functions.values():
        if any(v.name == name for v in all_values(function.graph)):
            return InputError(
                f"'{name}' is inside the function '{function.domain}::{function.name}'",
                next_step="write the function out first: tp.graph.inline, or --inline",
            )
    every = {str(v.name) for v in all_values(model.graph)}
    return unknown(name, "weight", every)


# --- an input becomes a weight ----------------------------------------------------------------------------------------


@in_place
@unproves
def to_constant(model: ir.Model, name: Tensor, value: Any) -> int:
    """Make an input of the model a weight. A dynamic dimension whose size that settles gets it everywhere.

    Args:
        model: changed in place.
        name: the input or its name.
        value: an array or tensor of its dtype, numbers or a list of numbers, or the path of a ``.npy``. A single
            number fills an input of fixed shape.

    Returns:
        1.

    Raises:
        InputError: there is no such input, the value does not fit it, or the model contradicts it.

    Example:
        >>> tp.graph.to_constant(model, "threshold", 0.5)
    """
    name = tensor_name(model, name)
    inputs = {str(v.name): v for v in model.graph.inputs}
    if name not in inputs:
        raise unknown(name, "input", inputs)
    given = inputs[name]
    if not isinstance(given.type, ir.TensorType) or given.dtype is None:
        raise InputError(f"the input '{name}' is no tensor, so it cannot be a weight", next_step="choose another input")
    tensor = tensor_for(given, value)
    sizes = _sizes(given, tensor)
    attempt(model, lambda: _settle(model, given, tensor, sizes), f"'{name}' cannot be that")
    return 1


def _sizes(given: ir.Value, tensor: ir.TensorProtocol) -> dict[str, int]:
    """The size of each dynamic dimension that the value settles."""
    shape, found = tuple(tensor.shape.numpy()), dict[str, int]()
    if given.shape is None:
        return found
    fits = len(shape) == len(given.shape)
    for dim, size in zip(given.shape, shape, strict=False):
        if isinstance(dim, int):
            fits = fits and dim == size
        elif dim.value is not None and not is_placeholder(dim.value):
            fits = fits and found.setdefault(dim.value, size) == size
    if not fits:
        raise InputError(
            f"the input '{given.name}' is {given.shape}, what is given is [{','.join(map(str, shape))}]",
            next_step="give it in that shape",
        )
    return found


def _settle(model: ir.Model, given: ir.Value, tensor: ir.TensorProtocol, sizes: Mapping[str, int]) -> None:
    dims = Dims.of(model)  # the names of `given` among them
    model.graph.inputs.remove(given)  # del would leave it marked as an input
    given.const_value, given.shape = tensor, ir.Shape(tensor.shape.numpy())
    model.graph.register_initializer(given)
    model.ir_version = max(model.ir_version, 4)  # before, weights had to be inputs
    for value in all_values(model):
        change_dims(value, lambda text: dims.evaluated(text, sizes))
    _sharpen(model)
    infer_again(model)


def _sharpen(model: ir.Model) -> None:
    """Dimensions that a known value makes known: of what is reshaped by it, say."""
    inner = inferred(model)
    if inner is None:
        return  # the check of the whole edit says what is wrong
    for graph, typed in zip(model.graphs(), inner.graphs(), strict=True):
        known = ir.convenience.create_value_mapping(typed)
        for value in own_values(graph):
            found = known[value.name].shape if value.name in known else None
            if value.shape is not None and found is not None and len(found) == len(value.shape):
                dims = [b if isinstance(b, int) else a for a, b in zip(value.shape, found, strict=True)]
                value.shape = ir.Shape(dims)
