"""Example inputs as tensors: what `--input` specs describe, and what a model's `example_inputs()` returns.

PyTorch's files are read with `weights_only=True`.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from torchport.capture.archive_members import check_zip
from torchport.capture.pytorch_files import load_weights
from torchport.errors import InputError, SourceError, first_line
from torchport.inputs.arrays import unreadable
from torchport.inputs.create import Args, Values, create_inputs
from torchport.inputs.spec import InputSpec
from torchport.tensors import to_torch


def build_inputs(specs: Sequence[InputSpec], *, seed: int = 0) -> Args:
    """Return the positional and the keyword arguments that the specs describe, as tensors.

    Raises:
        InputError: a name comes twice, a file cannot be read, or a tensor does not fit into memory.
    """
    args, kwargs = create_inputs(specs, seed=seed, read_pt=read_pt)
    return tuple(_tensors(list(args))), _tensors(kwargs)


def _tensors(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "U":
            raise InputError("an input holds texts, and PyTorch has no tensors of texts", next_step="give numbers")
        return to_torch(value)
    if isinstance(value, dict):
        return {key: _tensors(item) for key, item in value.items()}
    return [_tensors(item) for item in value] if type(value) is list else value


def from_example(value: object) -> Args:
    """The arguments that an `example_inputs()` means by what it returned.

    A tensor is the only argument, a tuple or list are the positional ones, a mapping the keyword ones, and a
    pair of a tuple and a dict is both.
    """
    import torch

    if isinstance(value, torch.Tensor):
        return (value,), {}
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], tuple) and _is_named(value[1]):
        return value[0], dict(value[1])
    if isinstance(value, tuple | list):
        return tuple(value), {}
    if _is_named(value):
        return (), dict(value)  # type: ignore[call-overload]
    raise InputError(
        f"the example inputs are a {type(value).__name__}"
        + (" with keys that are no names" if isinstance(value, Mapping) else ""),
        where="example_inputs()",
        next_step="return a tensor, a tuple of arguments, a dict of named arguments, or (tuple, dict)",
    )


def _is_named(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)


def read_pt(path: Path, name: str | None) -> Values:
    """Return what a file of torch.save holds: the value of an input, or without a name the model's arguments."""
    value = _pt(path)
    if name is not None:
        return [], {name: value}
    args, kwargs = from_example(value)
    return list(args), kwargs


def _pt(path: Path) -> Any:
    try:
        if zipfile.is_zipfile(path):
            check_zip(path)
        return load_weights(path)
    except SourceError as error:
        raise unreadable(path, error.what) from error
    except Exception as error:
        raise unreadable(path, f"it holds more than tensors, or is broken ({first_line(error)[:120]})") from error
