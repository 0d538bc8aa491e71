"""tp.compare"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from torchport.comparison.feeds import MADE_UP, InputNotes, SameInputs, given_samples, same_inputs_as
from torchport.comparison.intermediates import BUDGET
from torchport.comparison.layers import Found, find_layers, make_folder
from torchport.comparison.mixed_precision import Precision, needs_precision
from torchport.comparison.pair_onnx import alike
from torchport.comparison.result import Comparison
from torchport.comparison.sides import (
    ARRAYS,
    OnnxSide,
    SavedSide,
    Seen,
    Side,
    TorchSide,
    check_repeatable,
    is_onnx,
    is_saved,
    numbers,
    on_sample,
    take,
    telling_nothing,
    tensors_of,
)
from torchport.conversion.options import Progress
from torchport.engines.registry import DEFAULT, check_engines
from torchport.errors import EngineError, EngineMissingError, InputError, OptionError, did_you_mean
from torchport.inputs.samples import Sample, save_call
from torchport.numerics.error_metrics import Figures, Metric, measure, measure_sequence
from torchport.numerics.tolerance import Limits, Tolerance, limits_for
from torchport.process import uncollected
from torchport.results import Finding
from torchport.tensors import Array


def compare(
    a: Any,
    b: Any = None,
    inputs: Any = None,
    *,
    data: Any = None,
    data_b: Any = None,
    layers: bool = False,
    isolate: bool = False,
    precision: bool = False,
    engines: Sequence[str] = (DEFAULT,),
    outputs: Mapping[str, str] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    metrics: Mapping[str, Metric] | None = None,
    budget: int = BUDGET,
    save: str | os.PathLike[str] | None = None,
    libraries: Sequence[str | os.PathLike[str]] = (),
    progress: Progress | None = None,
) -> Comparison | dict[str, Comparison]:
    """Hold one model against another: outputs, and layer by layer.

    Args:
        a: the reference: a PyTorch model, an ONNX file or model, or an ``.npz`` of tensors saved elsewhere.
        b: the candidate: the same kinds. None to hold `a` in the first of `engines` against it in the others.
        inputs: one sample: a tensor, a tuple, or a mapping by name. Made up from the shapes where nothing is given.
        data: many samples: a folder of ``.npz``, one such file, or an iterable of what `inputs` takes.
        data_b: the same calls as recorded on `b`'s side. Both sides are compared on `data`; that the inputs themselves
            differ is a finding.
        layers: compare every tensor inside too, and find where the error is introduced; on the worst sample.
        isolate: with `layers`, also give each node the reference's inputs, so that errors do not add up.
        precision: for a float16 or int8 ONNX model `b` of the float `a`: which layers need more precision.
        engines: what runs the ONNX models: one for two models; two or more without `b`.
        outputs: which output of `b` is which of `a`, where neither names nor order tell; others are not compared.
        rtol: relative tolerance; by dtype if not given.
        atol: absolute tolerance, beside the largest number of a tensor.
        metrics: your own figures, each a function of two arrays.
        budget: bytes of tensors to hold at once beyond the models.
        save: a folder for the worst sample, and for the first node that differs with its data.
        libraries: operator libraries the models may load, by path.
        progress: called with one line at each step.

    Returns:
        The comparison; without `b`, one for each further engine.

    Example:
        >>> result = tp.compare(model, "model.onnx", inputs=(x,), layers=True)
        >>> print(result.first_divergence)
    """
    if (rtol is None) != (atol is None):
        raise OptionError("rtol and atol belong together", next_step="give both")
    if inputs is not None and data is not None:
        raise OptionError("inputs and data are both given", next_step="give one sample, or many")
    if budget < 1:
        raise OptionError(f"no tensor fits into {budget} bytes", next_step="give --memory 1GiB, or budget=1 << 30")
    check_outputs(outputs or {})
    check_engines(engines, alone=b is None)
    tolerance = Tolerance(rtol, atol) if rtol is not None and atol is not None else None
    common = _Options(
        layers or isolate,
        isolate,
        precision,
        dict(outputs or {}),
        tolerance,
        dict(metrics or {}),
        budget,
        save,
        libraries,
    )
    say = progress or (lambda text: None)
    if save is not None:
        make_folder(save)
    if b is not None:
        return _Comparing((a, b), (engines[0], engines[0]), common, say).run(inputs, data, data_b)
    if not is_onnx(a):
        raise OptionError("engines run ONNX models", next_step="give an ONNX model, or a second model to compare with")
    kept = list(data) if isinstance(data, Iterator) else data  # every engine gets all of it
    return {e: _in_engine(a, (engines[0], e), common, say, inputs, kept) for e in engines[1:]}


@dataclasses.dataclass(frozen=True)
class _Options:
    layers: bool
    isolate: bool
    precision: bool
    outputs: dict[str, str]
    tolerance: Tolerance | None
    metrics: dict[str, Metric]
    budget: int
    save: str | os.PathLike[str] | None
    libraries: Sequence[str | os.PathLike[str]]


def _in_engine(
    model: Any, engines: tuple[str, str], options: _Options, say: Progress, inputs: Any, data: Any
) -> Comparison:
    """One further engine; that it fails is a result, so that the others get their turn."""
    comparing = _Comparing((model, model), engines, options, say)
    try:
        return comparing.run(inputs, data, None)
    except (EngineError, EngineMissingError) as error:
        if comparing.at_work == 0:  # then none of them can be compared
            raise
        text = " ".join(filter(None, [error.what, error.where and f"({error.where})"]))
        return Comparison(engines, (), 0, error=f"{text}; {error.next_step}" if error.next_step else text)


class _Comparing:
    def __init__(self, sources: tuple[Any, Any], engines: tuple[str, str], options: _Options, say: Progress) -> None:
        self._sources, self._engines, self._options, self._say = sources, engines, options, say
        self._stack = contextlib.ExitStack()
        self._findings: list[Finding] = []
        self._order_noted = False
        self.at_work = 0  # the side that is running

    def run(self, inputs: Any, data: Any, data_b: Any) -> Comparison:
        with self._stack:
            self._say("opening")
            opened: dict[int, OnnxSide] = {}
            with uncollected():
                for number, source in enumerate(self._sources):
                    self.at_work = number
                    if is_onnx(source):
                        opened[number] = self._open_onnx(number)
                        self._stack.callback(opened[number].close)
            samples = iter(given_samples(self._sources, inputs, data, opened))
            first = next(samples, None)
            if first is None:
                raise InputError("there is no sample to compare on", next_step="give inputs or a folder of .npz files")
            if first.name == MADE_UP:
                self._findings.append(Finding(f"the inputs were {MADE_UP}: give real ones with --input or --data"))
            with uncollected(), on_sample(first):
                sides = (self._side(0, opened, first), self._side(1, opened, first))
            return self._compare(sides, itertools.chain([first], samples), same_inputs_as(sides, data_b))

    def _open_onnx(self, number: int) -> OnnxSide:
        engine = self._engines[number]
        label = engine if self._engines[0] != self._engines[1] else ""
        return OnnxSide(self._sources[number], engine, self._options.libraries, label)

    def _side(self, number: int, opened: Mapping[int, OnnxSide], first: Sample) -> Side:
        if number in opened:
            return opened[number]
        source = self._sources[number]
        return SavedSide(source) if is_saved(source) else TorchSide(source, first, self._stack)

    def _compare(self, sides: tuple[Side, Side], samples: Iterable[Sample], same: SameInputs) -> Comparison:
        models = [side.model for side in sides if isinstance(side, OnnxSide)]
        limits = limits_for(models, self._options.tolerance)
        self._findings += limits.findings
        seen = Seen(keep=self._options.precision)
        answers: list[Mapping[str, Any]] = []  # to the worst sample
        notes = InputNotes(self._findings)
        for number, sample in enumerate(samples, start=1):
            self._say(f"comparing sample {number}")
            same.look(sample)
            with on_sample(sample):
                take(sides, sample)
                notes.look(sample, sides)
                given = [self._run(n, side, numbers(sample)) for n, side in enumerate(sides)]
                seen.add(sample, self._outputs(given[0], given[1], limits))
            answers = given if seen.worst is sample else answers
        same.close()
        self._findings += same.findings
        take(sides, seen.worst)
        agree = [f.name for f in seen.worst_figures if f.ok]
        left = self._left_out(sides, answers)
        found = self._layers(sides, seen.worst, limits, agree, left) if self._options.layers else Found()
        if len(agree) < len(seen.worst_figures) or any(isinstance(s, OnnxSide) and s.draws for s in sides):
            check_repeatable(sides, seen.worst, answers)
        outputs = seen.merged()
        self._findings += telling_nothing(answers[0], outputs)
        precision = self._precision(sides, seen.samples, limits) if self._options.precision else None
        return Comparison(
            (sides[0].label, sides[1].label),
            outputs,
            seen.count,
            found.layers,
            found.divergence,
            self._keep(seen.worst, all(f.ok for f in outputs)),
            (*self._findings, *found.findings),
            precision=precision,
            other_inputs=same.others,
        )

    def _left_out(self, sides: tuple[Side, Side], answers: Sequence[Mapping[str, Any]]) -> list[str]:
        """The candidate's outputs that were not compared; the findings tell, and those of the reference."""
        pairs = self._matched(answers[0], answers[1])
        compared = {one for one, _ in pairs}, {other for _, other in pairs}
        left = [[n for n in given if n not in names] for given, names in zip(answers, compared, strict=True)]
        findings: dict[str, Finding] = {}
        for side, other, names in zip(sides, reversed(sides), left, strict=True):
            why = "--map leaves it out" if self._options.outputs else f"{other.label} does not hold it"
            if not isinstance(side, SavedSide):  # which may hold tensors that are no outputs
                findings |= {n: Finding(f"output '{n}' was not compared: {why}") for n in names}
        self._findings += findings.values()
        return left[1]

    def _layers(
        self, sides: tuple[Side, Side], sample: Sample, limits: Limits, agree: list[str], left: Collection[str]
    ) -> Found:
        self._say("comparing layers")
        one, other = sides
        if left and isinstance(other, OnnxSide):
            other = other.without(left)
            self._stack.callback(other.close)
        with uncollected():
            return find_layers(
                (one, other),
                numbers(sample),
                limits,
                agree=agree,
                isolate=self._options.isolate,
                budget=self._options.budget,
                save=self._options.save,
                say=self._say,
            )

    def _precision(self, sides: tuple[Side, Side], samples: Sequence[Sample], limits: Limits) -> Precision:
        """For the floats of the reference; the tolerance is that of the coarser side."""
        one, other = sides
        if isinstance(one, TorchSide) and isinstance(other, OnnxSide):
            self._say("exporting the reference")
            one.take(samples[0])
            samples = self._called_alike(samples)
            one = one.exported(other)
        if not isinstance(one, OnnxSide) or not isinstance(other, OnnxSide):
            raise InputError(
                "which layers need more precision is told for an ONNX model, beside the float model it came from",
                where=f"{one.label} and {other.label}",
                next_step="give the float model first, then the ONNX file of less precision",
            )
        return needs_precision(
            one.model,
            other.model,
            [one.fit(numbers(sample)) for sample in samples],
            tolerance=limits("float32"),
            engine=one.engine,
            libraries=self._options.libraries,
            progress=self._say,
        )

    def _called_alike(self, samples: Sequence[Sample]) -> Sequence[Sample]:
        """The samples that are called as the first is: an exported model takes no others."""
        first = samples[0]
        found = [s for s in samples if s.arguments == first.arguments and set(s.arrays) == set(first.arrays)]
        if len(found) < len(samples):
            some = f"which layers need more precision is told by {len(found)} of {len(samples)} samples"
            self._findings.append(Finding(f"{some}: the others are called with other arguments"))
        return found

    def _outputs(
        self, ours: Mapping[str, Any], theirs: Mapping[str, Any], limits: Callable[[str, str], Tolerance]
    ) -> tuple[Figures, ...]:
        return tuple(
            self._measured(other, ours[one], theirs[other], limits) for one, other in self._matched(ours, theirs)
        )

    def _measured(self, name: str, ours: Any, theirs: Any, limits: Callable[[str, str], Tolerance]) -> Figures:
        if isinstance(ours, ARRAYS) and isinstance(theirs, ARRAYS):
            reference, candidate = alike(np.asarray(ours), np.asarray(theirs))
            limit = limits(reference.dtype.name, theirs.dtype.name)
            return measure(name, reference, candidate, tolerance=limit, metrics=self._options.metrics)
        one, other = tensors_of(name, ours), tensors_of(name, theirs)
        pairs = zip(one, other, strict=False)
        items = [self._measured(f"{name}[{i}]", a, b, limits) for i, (a, b) in enumerate(pairs)]
        return measure_sequence(name, items, (len(one), len(other)))

    def _run(self, number: int, side: Side, feeds: Mapping[str, Array]) -> Mapping[str, Any]:
        self.at_work = number
        try:
            return side.ask(feeds)
        except InputError as error:
            where = ", ".join(filter(None, [side.label, error.where]))
            raise InputError(error.what, where=where, next_step=error.next_step) from error

    def _matched(self, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Which output is which: as the options map them, by name, else in order."""
        mapped = self._options.outputs
        unknown = [n for n in mapped if n not in ours] + [n for n in mapped.values() if n not in theirs]
        if unknown:
            known = f"{', '.join(ours)} and {', '.join(theirs)}"
            raise InputError(
                f"there is no output '{unknown[0]}'",
                where=f"outputs: {known}",
                next_step=did_you_mean(unknown[0], [*ours, *theirs], "give A=B with names of these", most=1),
            )
        if mapped:
            return list(mapped.items())
        if set(ours) == set(theirs):
            return [(n, n) for n in theirs]
        both = [n for n in theirs if n in ours]
        if len(ours) == len(theirs):
            rest = list(zip((n for n in ours if n not in both), (n for n in theirs if n not in both), strict=True))
            if len(rest) > 1 and not self._order_noted:
                self._order_noted = True
                pairs = ", ".join(f"{one}={other}" for one, other in rest)
                self._findings.append(Finding(f"outputs are compared in order: {pairs}; --map says otherwise"))
            return [*((n, n) for n in both), *rest]
        if both and any(map(is_saved, self._sources)):
            return [(n, n) for n in both]
        raise InputError(
            f"one side has {len(ours)} outputs, the other {len(theirs)}",
            where=f"{', '.join(ours)} and {', '.join(theirs)}",
            next_step="say which is which: outputs={'a': 'b'}, or --map a=b",
        )

    def _keep(self, sample: Sample, fine: bool) -> str:
        if self._options.save is None or fine:
            return sample.name if not fine else ""
        target = Path(self._options.save) / "worst.npz"
        save_call(target, dataclasses.replace(sample, arrays=numbers(sample)))
        return str(target)


# Options of a comparison that contradict each other.


def check_outputs(outputs: Mapping[str, str]) -> None:
    names = list(outputs.values())
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise OptionError(f"output '{twice[0]}' is given twice", next_step="each output has one partner")
