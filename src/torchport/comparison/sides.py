"""The sides of a comparison: a PyTorch model, an ONNX model in an engine, saved tensors; and their samples."""

from __future__ import annotations

import contextlib
import copy
import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir
import torch

from torchport.capture import models
from torchport.capture.origins import line_of_error
from torchport.capture.reference import Reference, preserved
from torchport.capture.structure import signature_of
from torchport.comparison.intermediates import forget_weights
from torchport.comparison.recorded_calls import rebuilt
from torchport.engines.registry import faults_of
from torchport.engines.session import open_session
from torchport.errors import EngineError, ForwardError, InputError, RandomModelError, TorchportError
from torchport.files import onnx_files
from torchport.inputs.binding import nested
from torchport.inputs.samples import Sample, read_samples
from torchport.numerics.check import quick_check, rounded
from torchport.numerics.error_metrics import Figures, merged
from torchport.process import silence
from torchport.results import Finding
from torchport.tensors import Array, is_torch, to_torch

_RANDOM = {
    *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
    *("Multinomial", "Bernoulli", "Dropout"),
}


class Side(Protocol):
    """One side of a comparison."""

    label: str
    inputs: tuple[str, ...]

    def ask(self, feeds: Mapping[str, Array]) -> Mapping[str, Any]:
        """The outputs by name, in order: arrays, or lists of them."""
        ...


def is_onnx(source: Any) -> bool:
    return isinstance(source, ir.Model) or (isinstance(source, (str, os.PathLike)) and Path(source).suffix != ".npz")


def is_saved(source: Any) -> bool:
    return isinstance(source, (str, os.PathLike)) and Path(source).suffix == ".npz"


def _loaded(path: str | os.PathLike[str]) -> ir.Model:
    """A model whose weights lie in memory as numbers: several sessions are opened, none of which copies them again."""
    model = onnx_files.load(path)
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

    def without(self, outputs: Collection[str]) -> OnnxSide:
        """The same with fewer outputs: what nobody compares is a tensor inside like any other."""
        other = copy.copy(self)
        other.model, other._is_own = self.model.clone(), True
        kept = [v for v in other.model.graph.outputs if v.name not in outputs]
        other.model.graph.outputs[:] = kept
        return other

    @property
    def may_be_random(self) -> bool:
        """Whether there are nodes that draw numbers, or of which nobody knows."""
        nodes = ir.traversal.RecursiveGraphIterator(self.model.graph)
        return self.draws or bool(self.model.functions) or any(n.domain for n in nodes)

    @property
    def draws(self) -> bool:
        """Whether there are nodes that draw numbers; two sessions may draw the same ones the first time."""
        return any(n.op_type in _RANDOM for n in ir.traversal.RecursiveGraphIterator(self.model.graph))

    def ask(self, feeds: Mapping[str, Array]) -> dict[str, Any]:
        given = self.fit(feeds)
        with faults_of(self.engine):
            answers = self.session.run(given)
        sequences = {v.name for v in self.model.graph.outputs if isinstance(v.type, ir.SequenceType)}
        return {n: list(a) if n in sequences else a for n, a in answers.items()}  # engines may give them stacked

    def fit(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """The inputs by this model's names; floats of another width in its own: a float16 model beside its original."""
        dtypes = {i.name: i.dtype for i in self.session.inputs}
        with np.errstate(over="ignore"):  # a float16 model overflows as it does
            return {n: rounded(a, dtypes[n]) for n, a in fitted(feeds, self).items()}


class TorchSide:
    """A PyTorch model in eval mode, left as it was found; called as the sample is that it took last."""

    def __init__(self, model: Any, first: Sample, stack: contextlib.ExitStack) -> None:
        self._model, self._subject = model, models.subject(model)
        target = self._subject.target
        self.root = target if isinstance(target, torch.nn.Module) else None
        self.label = f"PyTorch's {type(target).__name__}"
        self._snapshot = stack.enter_context(preserved(target, "eval"))
        self.take(first)

    def take(self, sample: Sample) -> None:
        """From now on, call the model with this sample's arguments: which tensors, in which containers, what else."""
        self._given = sample.call or _arguments(self._subject, sample)
        call = models.call(self._subject, *self._given)
        models.check_devices(call)
        self._reference = Reference(call, self._snapshot)
        self.inputs = tuple(call.names)
        self.last: dict[str, Array] | None = None  # its outputs of the last run

    def ask(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        arrays = list(fitted(feeds, self).values())
        with silence(), _forward_errors(self.label):
            outputs = self._reference(arrays)
        self.last = dict(zip(self._reference.output_names, outputs, strict=True))
        return self.last

    def exported(self, like: OnnxSide) -> OnnxSide:
        """The model as ONNX, with the interface of another."""
        from torchport.conversion.export import export

        args, kwargs = self._given
        pairs = zip(self.inputs, like.session.inputs, strict=False)
        free = {n: {i: d for i, d in enumerate(info.shape or ()) if isinstance(d, str)} for n, info in pairs}
        fresh = export(
            self._model,
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

    @property
    def is_recorded(self) -> bool:
        """Whether the file says which tensors went in and which came out."""
        return bool(self.sample.outputs)

    def ask(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """What the file says the model gave, if it was recorded; else all tensors but the inputs."""
        return dict(self.sample.outputs) or {n: a for n, a in self.sample.arrays.items() if n not in feeds}

    @property
    def tensors(self) -> dict[str, Array]:
        return {**self.sample.arrays, **self.sample.outputs}


def _arguments(subject: Any, sample: Sample) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """As recorded; else by name where the PyTorch model has parameters of these names, else in order."""
    known = signature_of(subject.target).parameters
    if sample.given and set(sample.given) <= set(known):
        return rebuilt(subject.target, sample)
    tensors = {n: v if is_torch(v) or not isinstance(v, np.ndarray) else to_torch(v) for n, v in sample.arrays.items()}
    others = {n: v for n, v in sample.arguments.items() if n.split(".")[0] in known}
    if all(n.split(".")[0] in known for n in tensors):
        return (), nested({**tensors, **others})
    return tuple(tensors.values()), nested(others)


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


def take(sides: tuple[Side, Side], sample: Sample) -> None:
    for side in sides:
        if isinstance(side, TorchSide):
            side.take(sample)


def check_repeatable(sides: tuple[Side, Side], sample: Sample, answers: Sequence[Mapping[str, Array]]) -> None:
    for word, side, once in zip(("reference", "candidate"), sides, answers, strict=True):
        if isinstance(side, OnnxSide) and not side.may_be_random:
            continue
        last = side.last if isinstance(side, TorchSide) else None
        again = last if last is not None and last is not once else side.ask(numbers(sample))
        if _moved(once, again):
            again = side.ask(numbers(sample))  # watched, it may have taken another way than alone
        moved = _moved(once, again)
        if moved:
            raise RandomModelError(
                f"the {word} answers differently each time it is asked the same",
                where=f"{side.label}, output '{moved[0]}'",
                next_step="take random numbers as an input instead of drawing them inside",
            )


def _moved(once: Mapping[str, Any], again: Mapping[str, Any]) -> list[str]:
    return [n for n in again if not _alike(tensors_of(n, once[n]), tensors_of(n, again[n]))]


def _alike(once: list[Array], again: list[Array]) -> bool:
    return len(once) == len(again) and all(quick_check(a, b).ok for a, b in zip(once, again, strict=True))


# What came of each sample of a comparison.

ARRAYS = (np.ndarray, np.generic)


class Seen:
    """The figures of every sample, and the sample that came out worst."""

    def __init__(self, *, keep: bool) -> None:
        self._keep = keep
        self._figures: list[tuple[Figures, ...]] = []
        self._badness: tuple[bool, float, float] | None = None
        self.samples: list[Sample] = []

    @property
    def count(self) -> int:
        return len(self._figures)

    def add(self, sample: Sample, figures: tuple[Figures, ...]) -> None:
        badness = max((_badness(f) for f in figures), default=(False, 0.0, 0.0))
        if self._badness is None or badness > self._badness:
            self._badness, self.worst, self.worst_figures = badness, sample, figures
        self._figures.append(figures)
        if self._keep:
            self.samples.append(sample)

    def merged(self) -> tuple[Figures, ...]:
        """Each output over the samples that have it."""
        by_name: dict[str, list[Figures]] = {}
        for one in (f for figures in self._figures for f in figures):
            by_name.setdefault(one.name, []).append(one)
        return tuple(merged(figures) for figures in by_name.values())


def _badness(figures: Figures) -> tuple[bool, float, float]:
    """Wrong before right, then how many numbers are wrong, then how far off they are; as in `merged`."""
    return not figures.ok, figures.mismatched, math.inf if math.isnan(figures.max_abs) else figures.max_abs


@contextlib.contextmanager
def on_sample(sample: Sample) -> Iterator[None]:
    """What goes wrong goes wrong on this sample."""
    try:
        yield
    except (InputError, ForwardError, EngineError) as error:
        where = error.where or ""
        place = where if sample.name in where else ", ".join(filter(None, [sample.name, where]))
        raise type(error)(error.what, where=place, next_step=error.next_step) from error


def tensors_of(name: str, output: Any) -> list[Array]:
    """What an output holds: one tensor, a sequence of them, or nothing where it is optional."""
    items = output if isinstance(output, (list, tuple)) else [] if output is None else [output]
    for item in items:
        if not isinstance(item, ARRAYS):
            raise InputError(
                f"output '{name}' holds a {type(item).__name__}: only tensors and sequences of them are compared",
                next_step="leave it out: --map a=b (outputs={'a': 'b'}) names the outputs to compare",
            )
    return list(items)


def telling_nothing(answers: Mapping[str, Any], outputs: Sequence[Figures]) -> list[Finding]:
    """Outputs whose agreement says nothing."""
    floats = {n: a for n, a in answers.items() if isinstance(a, ARRAYS) and "float" in a.dtype.name and a.size}
    void = [n for n, a in floats.items() if np.isnan(a.astype(np.float64)).all()]
    empty = [f.name for f in outputs if f.ok and not f.count]
    return [
        *(Finding(f"output '{n}' of the reference is NaN throughout, which tells nothing") for n in void),
        *(Finding(f"output '{n}' is empty: nothing was compared in it") for n in empty),
    ]
