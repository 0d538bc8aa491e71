"""What the two sides of a comparison are fed with, and whether that is the same."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from torchport.capture import models
from torchport.capture.structure import put_together, signature_of
from torchport.comparison.input_differences import same_inputs
from torchport.comparison.recorded_calls import described, noted
from torchport.comparison.sides import OnnxSide, SavedSide, Side, is_onnx, is_saved
from torchport.errors import InputError, did_you_mean
from torchport.inputs.create import accepted
from torchport.inputs.samples import OUTPUT, Sample, is_unnamed, read_samples
from torchport.results import Finding
from torchport.tensors import is_torch, to_numpy

MADE_UP = "made up from the shapes"


def given_samples(sources: tuple[Any, Any], inputs: Any, data: Any, opened: Mapping[int, OnnxSide]) -> Iterator[Sample]:
    """The samples given; else those saved with a side's tensors; else one made up from an ONNX model's shapes.

    Raises:
        InputError: there are none, or a side of saved tensors does not hold what it was made from.
    """
    if data is not None:
        return read_samples(data)
    if inputs is not None:
        return iter([_taken_apart(sources, inputs)]) if _is_nested(inputs) else read_samples([inputs])
    saved = [SavedSide(source) for source in sources if is_saved(source)]
    if len(saved) == len(sources):
        return iter([Sample("saved", {})])
    if saved:
        return iter([_saved_inputs(saved[0], _wanted(sources, opened))])
    if not opened:
        raise InputError("no inputs are given", next_step="give inputs=, or --input x=float32[1,3,224,224]")
    session = next(iter(opened.values())).session
    arrays = accepted(session.inputs, lambda given: session(*given))
    return iter([Sample(MADE_UP, {i.name: a for i, a in zip(session.inputs, arrays, strict=True)})])


def _is_nested(inputs: Any) -> bool:
    """Whether a container or another object, a cache say, is among the inputs."""
    values = inputs.values() if isinstance(inputs, Mapping) else inputs if isinstance(inputs, (tuple, list)) else ()
    return not all(v is None or is_torch(v) or isinstance(v, (np.ndarray, np.generic, str, int, float)) for v in values)


def _taken_apart(sources: tuple[Any, Any], inputs: Any) -> Sample:
    """A call of the PyTorch model, its tensors by the names the export gives them."""
    called = [source for source in sources if not is_saved(source) and not is_onnx(source)]
    if not called:
        raise InputError("ONNX models take arrays only", next_step="give each input by the name it has there")
    args, kwargs = ((), dict(inputs)) if isinstance(inputs, Mapping) else (tuple(inputs), {})
    call = models.call(models.subject(called[0]), args, kwargs)
    values = {name: put_together(node, call.tensors) for name, node in call.arguments.items()}
    bound = inspect.BoundArguments(signature_of(call.target), OrderedDict(values))
    arrays = {name: to_numpy(tensor) for name, tensor in zip(call.names, call.tensors, strict=True)}
    given = described(call.target, bound.args, bound.kwargs)
    return Sample("sample 0", arrays, arguments=noted(call), given=given, call=(bound.args, bound.kwargs))


def _wanted(sources: tuple[Any, Any], opened: Mapping[int, OnnxSide]) -> tuple[list[str], list[str]]:
    """The inputs of the model beside saved tensors: those it must have, and all it may have."""
    if opened:
        names = list(next(iter(opened.values())).inputs)
        return names, names
    model = next(source for source in sources if not is_saved(source))
    parameters = signature_of(models.subject(model).target).parameters.values()
    return [p.name for p in parameters if p.default is p.empty], [p.name for p in parameters]


def _saved_inputs(side: SavedSide, wanted: tuple[list[str], list[str]]) -> Sample:
    needed, known = wanted
    arrays = side.sample.arrays
    missing = [n for n in needed if n not in arrays and n not in side.sample.given]
    if missing:
        raise InputError(
            f"'{side.label}' does not hold the input '{missing[0]}' its tensors were made from",
            where=f"it holds: {', '.join([*arrays, *side.sample.outputs]) or 'nothing'}",
            next_step="give the inputs with --input or --data (inputs=, data=), or save them in the same file",
        )
    if side.is_recorded:  # all its arrays are inputs, those in containers too
        return dataclasses.replace(side.sample, outputs={})
    return Sample(side.sample.name, {n: arrays[n] for n in known if n in arrays}, arguments=side.sample.arguments)


def unused_inputs(sample: Sample, sides: tuple[Side, Side]) -> list[Finding]:
    """Inputs that only one side takes, or that a side takes by another name.

    Raises:
        InputError: neither side takes one.
    """
    takers = {n: [s for s in sides if n in s.inputs] for n in sample.arrays}
    models = [s for s in sides if s.inputs]
    in_order = [s for s in models if not set(s.inputs) & set(sample.arrays)]  # what it takes has other names
    findings = [Finding(f"{s.label} takes the inputs in order, as {', '.join(s.inputs)}") for s in in_order]
    if not any(takers.values()):
        return [] if all(map(is_unnamed, sample.arrays)) else findings
    saved = [s for s in sides if isinstance(s, SavedSide)]
    for name in [n for n, found in takers.items() if not found]:
        if not any(name in s.tensors for s in saved):
            known = ", ".join(dict.fromkeys(n for s in models for n in s.inputs))
            raise InputError(
                f"there is no input '{name}'",
                where=f"the models take: {known}",
                next_step=did_you_mean(name, known.split(", "), "give one of these", most=1),
            )
        if any(s.is_recorded for s in saved):
            findings.append(Finding(f"input '{name}' of the recorded call is not taken by {models[0].label}"))
    alone = {n: found[0].label for n, found in takers.items() if len(found) == 1 < len(models) - len(in_order)}
    return findings + [Finding(f"input '{n}' is taken by {label} only") for n, label in alone.items()]


def other_arguments(sample: Sample, first: Sample, sides: tuple[Side, Side]) -> list[Finding]:
    """That a call has other arguments than the first, where an ONNX model has one value for all."""
    names = [n for n in {**first.arguments, **sample.arguments} if not n.startswith(OUTPUT)]
    if not any(isinstance(s, OnnxSide) for s in sides):
        return []
    return [
        Finding(f"argument '{name}' is not the same in all calls: in an ONNX model, what is no tensor has one value")
        for name in names
        if first.arguments.get(name) != sample.arguments.get(name)
    ]


class InputNotes:
    """What is to be said of how samples are given, once each; it names the sample if that is not the first."""

    def __init__(self, findings: list[Finding]) -> None:
        self._findings = findings
        self._noted: set[str] = set()
        self._first: Sample | None = None

    def look(self, sample: Sample, sides: tuple[Side, Side]) -> None:
        first = self._first = self._first or sample
        for finding in [*unused_inputs(sample, sides), *other_arguments(sample, first, sides)]:
            if finding.message not in self._noted:
                self._noted.add(finding.message)
                where = "" if sample is first else sample.name
                self._findings.append(dataclasses.replace(finding, where=where))


class SameInputs:
    """Looks whether the other side was fed the same, sample by sample, and says so once for each input.

    Args:
        others: the other side's samples, in the same order; None if they are not known.
        all_there: whether these hold all inputs; else those are looked at that they hold.

    Example:
        >>> same = SameInputs(read_samples("theirs/"))
        >>> same.look(ours)
        >>> print(same.findings[0])
        the inputs differ (call_00001.npz): input 'x' differs by a factor of 255: one side scales to 0..1
    """

    def __init__(self, others: Iterator[Sample] | None, *, all_there: bool = True) -> None:
        self._others, self._all_there = others, all_there
        self._noted: dict[str, Finding] = {}
        self._count = 0

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(self._noted.values())

    @property
    def others(self) -> tuple[str, ...]:
        """The inputs that differ."""
        return tuple(name for name in self._noted if name)

    def look(self, sample: Sample) -> None:
        """Hold a sample against the next of the other side's."""
        if self._others is None:
            return
        other = next(self._others, None)
        if other is None:
            message = (
                f"the other side has {self._count} samples only: from '{sample.name}' on, inputs were not compared"
            )
            self._noted.setdefault("", Finding(message))
            return
        self._count += 1
        other = _called_alike(other, sample) if self._all_there else other
        names = [n for n in sample.arrays if self._all_there or n in other.arrays]
        for figures in same_inputs(sample, other, names):
            if not figures.ok:
                message = f"the inputs differ ({sample.name}): {figures.problem}"
                self._noted.setdefault(figures.name, Finding(message))

    def close(self) -> None:
        """Say so if the other side goes on."""
        if self._others is not None and next(self._others, None) is not None:
            message = f"the other side has more than these {self._count} samples: the rest was not compared"
            self._noted.setdefault("", Finding(message))


def _called_alike(other: Sample, sample: Sample) -> Sample:
    """Inputs of other names, but as many, belong together in order."""
    if set(other.arrays) & set(sample.arrays) or len(other.arrays) != len(sample.arrays):
        return other
    return dataclasses.replace(other, arrays=dict(zip(sample.arrays, other.arrays.values(), strict=True)))


def same_inputs_as(sides: tuple[Side, Side], samples: Any) -> SameInputs:
    """Looks at the other side's samples: those given, else what is saved with a side's tensors."""
    if samples is not None:
        return SameInputs(read_samples(samples))
    saved = [side.sample for side in sides if isinstance(side, SavedSide)]
    return SameInputs(itertools.repeat(saved[0], 1) if len(saved) == 1 else None, all_there=False)
