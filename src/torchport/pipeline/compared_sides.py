"""What can stand on either side of a comparison: a PyTorch model, an ONNX model in an engine, saved tensors."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir
import torch

from torchport.capture import models
from torchport.comparing.samples import Sample, read_samples
from torchport.engines.base import open_session
from torchport.errors import InputError
from torchport.graph import files
from torchport.pipeline.job import Job
from torchport.silence import silence
from torchport.tensors import is_torch, to_torch

Array = np.ndarray[Any, Any]


class Side(Protocol):
    """One side of a comparison."""

    label: str
    inputs: tuple[str, ...]

    def ask(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs by name, in order."""
        ...


def is_onnx(source: Any) -> bool:
    return isinstance(source, ir.Model) or (isinstance(source, (str, os.PathLike)) and Path(source).suffix != ".npz")


def is_saved(source: Any) -> bool:
    return isinstance(source, (str, os.PathLike)) and Path(source).suffix == ".npz"


class OnnxSide:
    """An ONNX model in an engine, as its user would run it."""

    def __init__(self, source: Any, engine: str, libraries: Sequence[str | os.PathLike[str]], label: str = "") -> None:
        self.model = source if isinstance(source, ir.Model) else files.load(source)
        self.label = label or (source.graph.name or "the model" if isinstance(source, ir.Model) else str(source))
        self.engine, self.libraries = engine, libraries
        self.session = open_session(self.model, engine, libraries=libraries)
        self.inputs = tuple(i.name for i in self.session.inputs)

    def ask(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        return self.session.run(fitted(feeds, self))


class TorchSide:
    """A PyTorch model in eval mode, left as it was found."""

    def __init__(self, model: Any, example: Mapping[str, Any], stack: contextlib.ExitStack) -> None:
        subject = models.subject(model)
        self.root = subject.target if isinstance(subject.target, torch.nn.Module) else None
        self.label = f"PyTorch's {type(subject.target).__name__}"
        args, kwargs = _arguments(subject, example)
        self._job = Job(model, args, kwargs)
        stack.enter_context(self._job.opened())
        self.inputs = tuple(self._job.call.names)

    def ask(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        arrays = list(fitted(feeds, self).values())
        with silence():
            outputs = self._job.reference(arrays)
        return dict(zip(self._job.reference.output_names, outputs, strict=True))


class SavedSide:
    """Tensors that were saved elsewhere, by name."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        (self.sample,) = read_samples(path)
        self.label = str(path)
        self.inputs: tuple[str, ...] = ()

    def ask(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        return {n: a for n, a in self.sample.arrays.items() if n not in feeds}


def _arguments(subject: Any, example: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """By name where the PyTorch model has parameters of these names, else in order."""
    from torchport.capture.structure import signature_of

    tensors = {n: v if is_torch(v) or not isinstance(v, np.ndarray) else to_torch(v) for n, v in example.items()}
    known = signature_of(subject.target).parameters
    return ((), tensors) if set(tensors) <= set(known) else (tuple(tensors.values()), {})


def fitted(feeds: Mapping[str, Array], side: Side) -> dict[str, Array]:
    """The inputs as this side calls them: by name, else in order."""
    if set(side.inputs) <= set(feeds):
        return {n: feeds[n] for n in side.inputs}
    if len(side.inputs) == len(feeds):
        return dict(zip(side.inputs, feeds.values(), strict=True))
    raise InputError(
        f"the inputs do not fit {side.label}",
        where=f"given: {', '.join(feeds)}; it takes: {', '.join(side.inputs)}",
        next_step="give each input by the name it has there",
    )


def numbers(sample: Sample) -> dict[str, Array]:
    """A sample's inputs."""
    return {n: np.asarray(v) for n, v in sample.arrays.items()}
