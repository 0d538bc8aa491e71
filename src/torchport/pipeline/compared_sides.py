"""What can stand on either side of a comparison: a PyTorch model, an ONNX model in an engine, saved tensors."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir
import torch

from torchport.capture import models
from torchport.capture.blame import line_of_error
from torchport.comparing.layered import faults_of, forget_weights
from torchport.comparing.recorded import rounded
from torchport.comparing.samples import Sample, read_samples
from torchport.engines.base import open_session
from torchport.errors import ForwardError, InputError, TorchportError
from torchport.graph import files
from torchport.pipeline.job import Job
from torchport.silence import silence
from torchport.tensors import is_torch, to_torch

Array = np.ndarray[Any, Any]


_RANDOM = {
    *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
    *("Multinomial", "Bernoulli", "Dropout"),
}


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


def _loaded(path: str | os.PathLike[str]) -> ir.Model:
    """A model whose weights lie in memory as numbers: several sessions are opened, none of which copies them again."""
    model = files.load(path)
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if isinstance(tensor, ir.serde.TensorProtoTensor) and tensor.dtype == ir.DataType.FLOAT:
            value.const_value = ir.Tensor(
                tensor.numpy(),
                name=tensor.name,
                doc_string=tensor.doc_string,
                metadata_props=dict(tensor.metadata_props),
            )
    return model


class OnnxSide:
    """An ONNX model in an engine, as its user would run it."""

    def __init__(self, source: Any, engine: str, libraries: Sequence[str | os.PathLike[str]], label: str = "") -> None:
        self._is_own = not isinstance(source, ir.Model)
        self.model = _loaded(source) if self._is_own else source
        self.label = label or (source.graph.name or "the model" if isinstance(source, ir.Model) else str(source))
        self.engine, self.libraries = engine, libraries
        with faults_of(engine):
            self.session = open_session(self.model, engine, libraries=libraries)
        self.inputs = tuple(i.name for i in self.session.inputs)

    def close(self) -> None:
        """Let go of the weights, if they were loaded for this."""
        if self._is_own:
            forget_weights(self.model)

    @property
    def may_be_random(self) -> bool:
        """Whether there are nodes that draw numbers, or of which nobody knows."""
        nodes = ir.traversal.RecursiveGraphIterator(self.model.graph)
        return self.draws or bool(self.model.functions) or any(n.domain for n in nodes)

    @property
    def draws(self) -> bool:
        """Whether there are nodes that draw numbers; two sessions may draw the same ones the first time."""
        return any(n.op_type in _RANDOM for n in ir.traversal.RecursiveGraphIterator(self.model.graph))

    def ask(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        given = self.fit(feeds)
        with faults_of(self.engine):
            return self.session.run(given)

    def fit(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """The inputs by this model's names; floats of another width in its own: a float16 model beside its original."""
        dtypes = {i.name: i.dtype for i in self.session.inputs}
        with np.errstate(over="ignore"):  # a float16 model overflows as it does
            return {n: rounded(a, dtypes[n]) for n, a in fitted(feeds, self).items()}


class TorchSide:
    """A PyTorch model in eval mode, left as it was found."""

    def __init__(self, model: Any, first: Sample, stack: contextlib.ExitStack) -> None:
        subject = models.subject(model)
        self.root = subject.target if isinstance(subject.target, torch.nn.Module) else None
        self.label = f"PyTorch's {type(subject.target).__name__}"
        args, kwargs = first.call or _arguments(subject, first)
        self._given = model, args, kwargs
        self._job = Job(model, args, kwargs)
        stack.enter_context(self._job.opened())
        self.inputs = tuple(self._job.call.names)
        self.last: dict[str, Array] = {}  # what it answered when it was last asked

    def ask(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        arrays = list(fitted(feeds, self).values())
        with silence(), _forward_errors(self.label):
            outputs = self._job.reference(arrays)
        self.last = dict(zip(self._job.reference.output_names, outputs, strict=True))
        return self.last

    def exported(self, like: OnnxSide) -> OnnxSide:
        """The model as ONNX, with the interface of another."""
        from torchport.pipeline.exporting import export

        model, args, kwargs = self._given
        pairs = zip(self.inputs, like.session.inputs, strict=False)
        free = {n: {i: d for i, d in enumerate(info.shape or ()) if isinstance(d, str)} for n, info in pairs}
        fresh = export(
            model,
            args,
            kwargs=kwargs,
            dynamic={n: axes for n, axes in free.items() if axes},
            input_names=list(like.inputs),
            output_names=[o.name for o in like.session.outputs],
            libraries=like.libraries,
        )
        return OnnxSide(fresh.model, like.engine, like.libraries, self.label)


@contextlib.contextmanager
def _forward_errors(label: str) -> Iterator[None]:
    """What a PyTorch model raises, as the user's to mend."""
    try:
        yield
    except TorchportError:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines()
        raise ForwardError(
            f"{label} raises {type(error).__name__} on these inputs: {lines[0] if lines else ''}",
            where=line_of_error(error) or None,
            next_step="do the inputs have the shapes and dtypes the model takes?",
        ) from error


class SavedSide:
    """Tensors that were saved elsewhere, by name."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        (self.sample,) = read_samples(path)
        self.label = str(path)
        self.inputs: tuple[str, ...] = ()

    def ask(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """What the file says the model gave, if it was recorded; else all tensors but the inputs."""
        return dict(self.sample.outputs) or {n: a for n, a in self.sample.arrays.items() if n not in feeds}

    @property
    def tensors(self) -> dict[str, Array]:
        return {**self.sample.arrays, **self.sample.outputs}


def _arguments(subject: Any, first: Sample) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """By name where the PyTorch model has parameters of these names, else in order."""
    from torchport.capture.structure import signature_of

    tensors = {n: v if is_torch(v) or not isinstance(v, np.ndarray) else to_torch(v) for n, v in first.arrays.items()}
    known = signature_of(subject.target).parameters
    others = {n: v for n, v in first.arguments.items() if n in known}
    return ((), {**tensors, **others}) if set(tensors) <= set(known) else (tuple(tensors.values()), others)


def fitted(feeds: Mapping[str, Array], side: Side) -> dict[str, Array]:
    """The inputs as this side calls them: by name; in order if no name fits."""
    if set(side.inputs) <= set(feeds):
        return {n: feeds[n] for n in side.inputs}
    if len(side.inputs) == len(feeds) and not set(side.inputs) & set(feeds):
        return dict(zip(side.inputs, feeds.values(), strict=True))
    raise InputError(
        f"the inputs do not fit {side.label}",
        where=f"given: {', '.join(feeds)}; it takes: {', '.join(side.inputs)}",
        next_step="give each input by the name it has there",
    )


def numbers(sample: Sample) -> dict[str, Array]:
    """A sample's inputs."""
    return {n: np.asarray(v) for n, v in sample.arrays.items()}
