"""Arrays on the command line: read inputs, save and show outputs."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from torchport.engines.base import Session
from torchport.errors import InputError, SaveError
from torchport.tensors import Array


def read(session: Session, texts: tuple[str, ...], seed: int) -> dict[str, Array]:
    """The model's inputs from --input specs, by name or by position."""
    from torchport.capture.input_arrays import create_inputs
    from torchport.capture.input_text import parse_input
    from torchport.tensors import is_torch, to_numpy

    args, kwargs = create_inputs([parse_input(text) for text in texts], seed=seed, read_pt=_read_pt)
    free = [i.name for i in session.inputs if i.name not in kwargs]
    if len(args) > len(free):
        raise InputError(
            f"{len(args) + len(kwargs)} inputs given, the model has {len(session.inputs)}",
            where=", ".join(str(i) for i in session.inputs),
        )
    feeds: dict[str, Any] = {**dict(zip(free, args, strict=False)), **_flat(kwargs)}
    return {name: to_numpy(value) if is_torch(value) else value for name, value in feeds.items()}


def _read_pt(path: Path, name: str | None) -> tuple[list[Any], dict[str, Any]]:
    from torchport.capture.inputs import read_pt  # imports torch, which arrays from elsewhere do not need

    return read_pt(path, name)


def _flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """``batch.x=...`` was read into a nest; an ONNX model's inputs are flat."""
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{name}.")
        elif isinstance(value, (list, tuple)):
            flat |= _flat({str(i): v for i, v in enumerate(value)}, f"{name}.")
        else:
            flat[name] = value
    return flat


def check_output(path: str) -> None:
    target = Path(path)
    if target.suffix not in (".npz", ".npy"):
        raise SaveError(f"'{path}' is neither .npz nor .npy", next_step="name it out.npz")
    if not target.parent.is_dir() or not os.access(target.parent, os.W_OK):
        raise SaveError(f"the folder of '{path}' is missing or cannot be written", next_step="make it first")


def save(path: str, outputs: Mapping[str, Array]) -> None:
    """Write to a temporary name first, so that a half file is never left."""
    from torchport.comparing.samples import save_sample

    target = Path(path)
    if target.suffix == ".npz":
        save_sample(target, outputs)
        return
    if len(outputs) != 1:
        raise SaveError(f"there are {len(outputs)} outputs, a .npy holds one", next_step="name it out.npz")
    part = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with open(part, "wb") as file:
            np.save(file, next(iter(outputs.values())), allow_pickle=False)
        os.replace(part, target)
    except OSError as error:
        raise SaveError(f"'{path}' cannot be written: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)


def summary(array: Array) -> dict[str, Any]:
    found: dict[str, Any] = {"dtype": array.dtype.name, "shape": list(array.shape)}
    if array.size and array.dtype.kind not in "OSUc":
        wide = array.astype(np.float64)
        found |= {"min": float(wide.min()), "max": float(wide.max()), "mean": float(wide.mean())}
    return found


def one_line(array: Array) -> str:
    figures = summary(array)
    shape = ",".join(map(str, figures["shape"]))
    text = f"{figures['dtype']}[{shape}]"
    if "mean" in figures and math.prod(figures["shape"]) > 8:
        return text + f"  min {figures['min']:.6g}  max {figures['max']:.6g}  mean {figures['mean']:.6g}"
    return text + "  " + np.array2string(array, precision=6, separator=", ", max_line_width=10**6)
