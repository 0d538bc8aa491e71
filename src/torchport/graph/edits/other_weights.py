"""Give weights other numbers."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from torchport.errors import InputError
from torchport.graph.edits.choosing import unproves
from torchport.graph.edits.naming import expanded
from torchport.inputs.arrays import reading, same_dtype
from torchport.irtools.traversal import bodies
from torchport.tensors import Array, is_torch, numpy_dtype, to_numpy


@unproves
def set_weights(
    model: ir.Model, source: str | os.PathLike[str] | Mapping[str, Any], *, names: Mapping[str, str] | None = None
) -> int:
    """Give weights other numbers, by name. Weights that the source does not have stay.

    Only names, shapes and dtypes that are the same will do: an export may have transposed a weight or folded several
    into one, so that PyTorch's own does not fit. A ``.safetensors`` is mapped into memory, and an array or tensor
    is used where it is: do not write to them before the model is saved.

    Args:
        model: changed in place.
        source: a ``.safetensors`` or ``.npz``, or arrays or tensors by name: a state dict, say.
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
    with _opened(source) as tensors:
        targets = _targets(list(tensors), weights, names or {})
        new = {name: _fitted(weights[name][0], tensors[key], key) for key, name in targets.items()}
    for name, tensor in new.items():
        for value in weights[name]:
            value.const_value = tensor
    return len(new)


def _weights(model: ir.Model) -> dict[str, list[ir.Value]]:
    found: dict[str, list[ir.Value]] = {}
    for body in bodies(model):
        for graph in (body, *body.subgraphs()):
            for name, value in graph.initializers.items():
                found.setdefault(name, []).append(value)
    return found


@contextlib.contextmanager
def _opened(source: str | os.PathLike[str] | Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if isinstance(source, Mapping):
        yield source
        return
    path = Path(source)
    if path.suffix not in (".safetensors", ".npz"):
        raise InputError(
            f"weights come from a .safetensors or .npz, not from '{path.name}'",
            next_step="the command line takes a .pt too; in Python give torch.load(path, weights_only=True)",
        )
    with reading(path):
        opened = contextlib.nullcontext(_safetensors(path)) if path.suffix == ".safetensors" else np.load(path)
    with reading(path), opened as tensors:
        yield tensors


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
    close = [c for n in names[:5] for c in difflib.get_close_matches(n, known, n=1, cutoff=0.5)]
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
