"""tp.compare"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from torchport.comparing.against_onnx import alike
from torchport.comparing.comparison import Comparison
from torchport.comparing.figures import Figures, Metric, measure, merged
from torchport.comparing.glance import glance
from torchport.comparing.layered import BUDGET
from torchport.comparing.samples import Sample, read_samples, save_sample
from torchport.errors import EngineError, InputError, OptionError, RandomModelError
from torchport.pipeline.compared_layers import Found, find_layers
from torchport.pipeline.compared_sides import OnnxSide, SavedSide, Side, TorchSide, is_onnx, is_saved, numbers
from torchport.pipeline.job import Progress
from torchport.pipeline.same_meaning import made_up
from torchport.proving.tolerances import DEFAULTS, Tolerance, tolerance
from torchport.records import Finding

Array = np.ndarray[Any, Any]

_QUANTIZED = Tolerance(0.1, 0.05)
_QUANTIZING = {"QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul", "DequantizeLinear"}


@dataclasses.dataclass(frozen=True)
class Limits:
    """The tolerance of a pair of tensors: what was asked for, else that of the coarser dtype."""

    asked: Tolerance | None = None
    quantized: bool = False

    def __call__(self, reference: str, candidate: str = "") -> Tolerance:
        own = tolerance(reference, candidate if candidate in DEFAULTS else None)
        if own.rtol == 0:
            return own  # whole numbers are exact
        if self.asked is not None:
            return self.asked
        return _QUANTIZED if self.quantized else own


def compare(
    a: Any,
    b: Any = None,
    inputs: Any = None,
    *,
    data: Any = None,
    layers: bool = False,
    isolate: bool = False,
    engines: Sequence[str] = ("onnxruntime",),
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
        layers: compare every tensor inside too, and find where the error is born; on the worst sample.
        isolate: with `layers`, also give each node the reference's inputs, so that errors do not add up.
        engines: what runs the ONNX models; for a PyTorch model or two ONNX models the first.
        outputs: which output of `b` is which of `a`, where neither names nor order tell.
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
    asked = Tolerance(rtol, atol) if rtol is not None and atol is not None else None
    common = _Asked(
        layers or isolate, isolate, dict(outputs or {}), asked, dict(metrics or {}), budget, save, libraries
    )
    say = progress or (lambda text: None)
    if b is not None:
        return _Comparing(a, b, (engines[0], engines[0]), common, say).run(inputs, data)
    if len(engines) < 2:
        raise OptionError("there is one model and one engine: nothing to compare with", next_step="name two engines")
    return {e: _in_engine(a, engines[0], e, common, say, inputs, data) for e in engines[1:]}


@dataclasses.dataclass(frozen=True)
class _Asked:
    layers: bool
    isolate: bool
    outputs: dict[str, str]
    tolerance: Tolerance | None
    metrics: dict[str, Metric]
    budget: int
    save: str | os.PathLike[str] | None
    libraries: Sequence[str | os.PathLike[str]]


def _in_engine(model: Any, first: str, engine: str, asked: _Asked, say: Progress, inputs: Any, data: Any) -> Comparison:
    """One further engine; that it fails is a result, so that the others get their turn."""
    try:
        return _Comparing(model, model, (first, engine), asked, say).run(inputs, data)
    except EngineError as error:
        text = error.what + (f" ({error.where})" if error.where else "")
        return Comparison((first, engine), (), 0, error=text)


class _Comparing:
    def __init__(self, a: Any, b: Any, engines: tuple[str, str], asked: _Asked, say: Progress) -> None:
        self._a, self._b, self._engines, self._asked, self._say = a, b, engines, asked, say
        self._stack = contextlib.ExitStack()
        self._findings: list[Finding] = []

    def run(self, inputs: Any, data: Any) -> Comparison:
        with self._stack:
            self._say("opening")
            opened = {n: self._open_onnx(n) for n in (0, 1) if is_onnx((self._a, self._b)[n])}
            samples = self._samples(inputs, data, opened)
            first = next(samples, None)
            if first is None:
                raise InputError("there is no sample to compare on", next_step="give inputs or a folder of .npz files")
            sides = (self._side(0, opened, first), self._side(1, opened, first))
            return self._compare(sides, first, samples)

    def _open_onnx(self, number: int) -> OnnxSide:
        source, engine = (self._a, self._b)[number], self._engines[number]
        label = engine if self._a is self._b else ""
        return OnnxSide(source, engine, self._asked.libraries, label)

    def _side(self, number: int, opened: Mapping[int, OnnxSide], first: Sample) -> Side:
        if number in opened:
            return opened[number]
        source = (self._a, self._b)[number]
        if is_saved(source):
            return SavedSide(source)
        return TorchSide(source, first.arrays, self._stack)

    def _samples(self, inputs: Any, data: Any, opened: Mapping[int, OnnxSide]) -> Iterator[Sample]:
        if data is not None:
            return iter(read_samples(data))
        if inputs is not None:
            return iter(read_samples([inputs]))
        for source in (self._a, self._b):
            if is_saved(source) and opened:
                saved = SavedSide(source).sample.arrays
                wanted = next(iter(opened.values())).inputs
                if set(wanted) <= set(saved):
                    return iter([Sample(str(source), {n: saved[n] for n in wanted})])
        if not opened:
            raise InputError("no inputs are given", next_step="give inputs=, or --input x=float32[1,3,224,224]")
        infos = next(iter(opened.values())).session.inputs
        self._findings.append(Finding("the inputs were made up from the shapes: give real ones with --input or --data"))
        arrays = made_up(infos)
        return iter([Sample("made up", {i.name: a for i, a in zip(infos, arrays, strict=True)})])

    def _compare(self, sides: tuple[Side, Side], first: Sample, others: Iterator[Sample]) -> Comparison:
        quantized = any(n.op_type in _QUANTIZING for s in sides if isinstance(s, OnnxSide) for n in s.model.graph)
        limits = Limits(self._asked.tolerance, quantized)
        if quantized and self._asked.tolerance is None:
            self._findings.append(
                Finding(f"a quantized model: {_QUANTIZED.atol:.0%} of the largest number is let through")
            )
        found: list[tuple[Figures, ...]] = []
        worst: tuple[float, Sample, tuple[Figures, ...]] | None = None
        for number, sample in enumerate(_chained(first, others), start=1):
            self._say(f"comparing sample {number}")
            figures = self._outputs(sides, sample, limits)
            found.append(figures)
            badness = max((_badness(f) for f in figures), default=0.0)
            if worst is None or badness > worst[0]:
                worst = (badness, sample, figures)
        assert worst is not None
        if not all(f.ok for f in worst[2]):
            self._check_repeatable(sides[0], worst[1])
        outputs = tuple(merged([one[n] for one in found]) for n in range(len(found[0])))
        layers = Found()
        if self._asked.layers:
            self._say("comparing layers")
            agree = [f.name for f in worst[2] if f.ok]
            layers = find_layers(
                sides,
                numbers(worst[1]),
                limits,
                agree=agree,
                isolate=self._asked.isolate,
                budget=self._asked.budget,
                save=self._asked.save,
            )
        return Comparison(
            (sides[0].label, sides[1].label),
            outputs,
            len(found),
            layers.layers,
            layers.divergence,
            self._keep(worst[1], all(f.ok for f in outputs)),
            (*self._findings, *layers.findings),
        )

    def _check_repeatable(self, reference: Side, sample: Sample) -> None:
        if not isinstance(reference, TorchSide):
            return
        once, again = (reference.ask(numbers(sample)) for _ in range(2))
        moved = [n for n in again if not glance(once[n], again[n]).ok]
        if moved:
            raise RandomModelError(
                "the reference answers differently each time it is asked the same",
                where=f"output '{moved[0]}'",
                next_step="compare it in eval mode, or take random numbers as an input instead of drawing them inside",
            )

    def _outputs(
        self, sides: tuple[Side, Side], sample: Sample, limits: Callable[[str, str], Tolerance]
    ) -> tuple[Figures, ...]:
        feeds = numbers(sample)
        ours, theirs = (side.ask(feeds) for side in sides)
        figures = []
        for one, other in self._matched(ours, theirs):
            reference, candidate = alike(ours[one], theirs[other])
            limit = limits(reference.dtype.name, theirs[other].dtype.name)
            figures.append(measure(other, reference, candidate, tolerance=limit, metrics=self._asked.metrics))
        return tuple(figures)

    def _matched(self, ours: Mapping[str, Array], theirs: Mapping[str, Array]) -> list[tuple[str, str]]:
        """Which output is which: as told, by name, else in order."""
        told = self._asked.outputs
        unknown = [n for n in told if n not in ours] + [n for n in told.values() if n not in theirs]
        if unknown:
            known = f"{', '.join(ours)} and {', '.join(theirs)}"
            raise InputError(f"there is no output '{unknown[0]}'", where=f"outputs: {known}")
        if told:
            return list(told.items())
        if set(ours) == set(theirs):
            return [(n, n) for n in theirs]
        if len(ours) == len(theirs):
            return list(zip(ours, theirs, strict=True))
        both = [n for n in theirs if n in ours]
        if both and (is_saved(self._a) or is_saved(self._b)):
            return [(n, n) for n in both]
        raise InputError(
            f"one side has {len(ours)} outputs, the other {len(theirs)}",
            where=f"{', '.join(ours)} and {', '.join(theirs)}",
            next_step="say which is which: outputs={'a': 'b'}, or --map a=b",
        )

    def _keep(self, sample: Sample, fine: bool) -> str:
        if self._asked.save is None or fine:
            return sample.name if not fine else ""
        target = Path(self._asked.save) / "worst.npz"
        target.parent.mkdir(parents=True, exist_ok=True)
        save_sample(target, numbers(sample))
        return str(target)


def _chained(first: Sample, others: Iterator[Sample]) -> Iterator[Sample]:
    yield first
    yield from others


def _badness(figures: Figures) -> float:
    return figures.mismatched + (0.0 if figures.ok else 1.0) + min(figures.max_abs, 1e30) * 1e-40
