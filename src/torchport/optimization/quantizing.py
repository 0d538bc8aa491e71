"""tp.quantize"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from torchport.benchmark.feeds import feeds_for, inputs_of
from torchport.benchmark.preparation import Common, model_file
from torchport.conversion.options import Progress
from torchport.engines.custom_operators import own_nodes
from torchport.engines.options import open_options
from torchport.engines.registry import DEFAULT
from torchport.engines.session import Session, open_session
from torchport.errors import OptionError, QuantizationError
from torchport.files import onnx_files
from torchport.files.filesystem import check_target
from torchport.irtools.metadata import origin_of, read_bounds
from torchport.irtools.traversal import all_nodes
from torchport.irtools.types import operator_name
from torchport.machine import cpu_flags
from torchport.optimization.accuracy import Accuracy, HeldOut, Limits, Metric
from torchport.optimization.calibration import CalibrationData, given_data, made_up_data
from torchport.optimization.float_layers import Found, QdqModel, QuantizedModel, fewest_in_float
from torchport.optimization.gain import Conditions, check_faster, is_faster, speeds
from torchport.optimization.layer_times import layer_times, slower_layers
from torchport.optimization.preparation import prepared, restore
from torchport.optimization.quantization_report import Layer, Quantized, Speed, decibels
from torchport.optimization.quantizer_process import QuantizerProcess
from torchport.optimization.requantized import RequantizedModel, quantizable
from torchport.optimization.scheme import ONNXRUNTIME, STATIC, Scheme, Wishes, expected_gain, schemes_for
from torchport.results import Finding, to_json
from torchport.tensors import Array

_RANKING = 0.4  # of the limit of time: for the ranking of layers
_WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "Attention")

Model = str | os.PathLike[str] | ir.Model


def quantize(
    model: Model,
    data: Any = None,
    *,
    scheme: str = STATIC,
    engine: str = DEFAULT,
    output: str | os.PathLike[str] | None = None,
    max_drop: float | str | Mapping[str, Any] = 0.01,
    metric: Metric | None = None,
    calibration: str | None = None,
    per_channel: bool = True,
    symmetric: bool | None = None,
    block: int | None = None,
    method: str | None = None,
    at: Mapping[str, int] | None = None,
    threads: int | None = None,
    options: Mapping[str, Any] | None = None,
    libraries: Sequence[str | os.PathLike[str]] = (),
    seconds: float = 2.0,
    limit: float = 900.0,
    memory: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Quantized:
    """Quantize a model, and prove on samples that were held out that it loses no more than was allowed.

    Where the whole model loses more, the layers that hurt most are left in float, as few as possible. The time is
    measured beside the float model. Nothing is saved that loses more, or that is slower.

    Args:
        model: a float ONNX file or a model in memory.
        data: calibration data: a folder of ``.npz``, recorded calls, or an iterable of dicts of arrays. Every fourth
            sample is held out. Made up from the model's shapes if None, with a warning.
        scheme: ``"static-int8"``, ``"dynamic-int8"``, ``"int8-weights"``, ``"int4-weights"`` or ``"float16"``.
        engine: what the model is quantized for, measured in and held against the float model in.
        output: the file to save; nothing is saved if None.
        max_drop: a part of 1, ``"1%"``, or limits by kind: ``{"cosine": 0.001, "sqnr": 30, "top1": "2%"}``. With a
            metric, how much that may drop.
        metric: called with the outputs and the sample, both arrays by name; returns a number, larger is better. Samples
            may then hold other arrays than inputs, labels say.
        calibration: how ranges are found: min-max, percentile, entropy or mse. If None the first two are tried.
        per_channel: each output channel of a weight has a scale of its own.
        symmetric: the zero of activations is at 0, or of weights in blocks; None for the quantizer's own choice.
        block: the number of weights that share a scale, where only weights are quantized.
        method: how weights are rounded to int4: rtn, hqq or gptq.
        at: sizes of dynamic dimensions for made-up data, ``{"batch": 8}``.
        threads: for the engine to compute with.
        options: what only this engine takes; docs/engines.md lists them.
        libraries: operator libraries that the model needs, by path.
        seconds: to measure each of both models for; 0 to measure no time.
        limit: the seconds that the quantizer's process may take in all, and nearly that for the search.
        memory: the bytes of address space that the quantizer's process may take; None for no limit.
        seed: for made-up data.
        progress: called with one line at each step.

    Raises:
        QuantizationError: the model is quantized already, nothing of it can be quantized within the limits, or the
            result is slower.

    Example:
        >>> print(tp.quantize("model.onnx", "samples/", output="int8.onnx", max_drop="1%"))
    """
    start = time.monotonic()
    limits = Limits.read(max_drop, has_metric=metric is not None)
    schemes = schemes_for(scheme, engine, Wishes(calibration, per_channel, symmetric, block, method))
    open_options(engine, threads=threads, settings=options)
    if output is not None:
        check_target(output)
    if not (0 <= seconds < float("inf") and limit > 0):
        raise OptionError(f"{seconds:g} seconds, within {limit:g}, cannot be meant", next_step="give numbers above 0")
    common = Common.read(libraries, seed=seed, trust=False)
    with contextlib.ExitStack() as stack:
        loaded = onnx_files.as_model(model)
        work = _Work(
            loaded,
            Path(stack.enter_context(model_file(model, loaded))),
            Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="torchport-"))),
            (engine, max(one.opset for one in schemes)),
            common,
            {"threads": threads, "options": options, "libraries": common.libraries},
            progress or (lambda text: None),
        )
        quantizer = stack.enter_context(QuantizerProcess(limit=limit, memory=memory))
        samples = work.data(data, at or {}, seed, extras=metric is not None)
        held_out = HeldOut(samples, work.opened(work.path), limits, metric)
        chosen = work.search(schemes, quantizer, samples, held_out, limits, limit)
        if seconds:
            chosen = work.measured(chosen, held_out, samples.inputs(samples.calibration[0]), seconds)
        result = work.report(chosen, samples, limits)
        shown = os.fspath(model) if isinstance(model, (str, os.PathLike)) else "the model"
        if output is not None:
            work.save(chosen, result, Path(output))
        return dataclasses.replace(
            result,
            model=shown,
            path="" if output is None else os.fspath(output),
            seconds=time.monotonic() - start,
        )


@dataclasses.dataclass(frozen=True)
class Chosen:
    """What was chosen.

    Attributes:
        scheme: how the model is quantized.
        model: from which layers can be put back to float.
        found: the layers that were, and the accuracy.
        slower: of these the layers that were put back because they are slower in int8.
        speed: beside the float model; None if it was not measured.
        times: of each layer, in the float and in the quantized model.
    """

    scheme: Scheme
    model: QuantizedModel
    found: Found
    slower: tuple[str, ...] = ()
    speed: Speed | None = None
    times: tuple[Mapping[str, float], Mapping[str, float]] = ({}, {})

    @property
    def path(self) -> Path:
        """Return the file of the model."""
        assert self.found.path is not None
        return self.found.path


class _Work:
    """A model that is quantized, step by step."""

    def __init__(
        self,
        model: ir.Model,
        path: Path,
        folder: Path,
        target: tuple[str, int],
        common: Common,
        opening: Mapping[str, Any],
        say: Progress,
    ) -> None:
        self.path, self._common = path, common
        self._engine, opset = target
        self._model, self._folder, self._opening, self._say = model, folder, opening, say
        self._prepared = prepared(model, opset)
        self._source = onnx_files.save(self._prepared, folder / "float.onnx", check=False)
        self._findings: list[Finding] = []

    def opened(self, path: Path) -> Session:
        """Open a model in the engine that it is quantized for."""
        return open_session(path, self._engine, **self._opening)

    def data(self, source: Any, at: Mapping[str, int], seed: int, *, extras: bool) -> CalibrationData:
        """Return the samples that were given, or some that are made up."""
        self._say("reading samples")
        folder = self._folder / "samples"
        folder.mkdir()
        infos, bounds = inputs_of(self._model), read_bounds(self._model.metadata_props)
        if source is not None:
            if at:
                raise OptionError("data is given, and sizes to make some at", next_step="leave --at or --data out")
            return given_data(source, infos, bounds, folder, extras=extras)
        [example] = feeds_for(self._model, str(self.path), None, [at], self._common)
        return made_up_data(example, folder, seed)

    # The search

    def search(
        self,
        schemes: Sequence[Scheme],
        quantizer: QuantizerProcess,
        samples: CalibrationData,
        held_out: HeldOut,
        limits: Limits,
        limit: float,
    ) -> Chosen:
        """Return the first scheme that is within the limits, else the best one with the fewest layers in float."""

        def measure(path: Path) -> Accuracy:
            return held_out.measure(self.opened(path))

        tried: list[tuple[Scheme, QuantizedModel, Accuracy]] = []
        failures: list[QuantizationError] = []
        for scheme in map(self._able, schemes):
            try:
                quantized = self._quantized(scheme, quantizer, samples)
            except QuantizationError as error:
                failures.append(error)
                continue
            self._say(f"holding {scheme.calibration or scheme.name} against the float model")
            tried.append((scheme, quantized, measure(quantized.without(()))))
            if tried[-1][2].ok:
                break
        if not tried:
            raise failures[0]
        self._findings += [Finding(error.what) for error in failures]
        scheme, quantized, whole = min(tried, key=lambda entry: (not entry[2].ok, entry[2].noise))
        found = fewest_in_float(
            quantized,
            measure,
            lambda path: held_out.noise(self.opened(path)),
            seconds=_RANKING * limit,
            say=self._say,
            whole=whole,
        )
        if found.path is None:
            raise _too_lossy(scheme, whole, limits, found)
        return Chosen(scheme, quantized, found)

    def _able(self, scheme: Scheme) -> Scheme:
        """Let ONNX Runtime quantize what nncf cannot open: a model with operators of its own."""
        return dataclasses.replace(scheme, quantizer=ONNXRUNTIME) if own_nodes(self._model) else scheme

    def _quantized(self, scheme: Scheme, quantizer: QuantizerProcess, samples: CalibrationData) -> QuantizedModel:
        self._say(f"quantizing: {scheme}")
        folder = self._folder / f"{scheme.name}-{scheme.calibration}"
        folder.mkdir()
        given = (samples.folder, samples.calibration)
        model: QuantizedModel
        if scheme.name == STATIC:
            target = folder / "quantized.onnx"
            quantizer.static(self._source, target, scheme, given, self._opening["libraries"])
            model = QdqModel(target, self._prepared, folder)
        else:
            model = RequantizedModel(
                quantizable(self._prepared, scheme),
                folder,
                lambda target, left: quantizer.without_ranges(self._source, target, scheme, given, left),
            )
        if not model.layers:
            raise QuantizationError(
                f"the model has no layer that {scheme.name} can quantize",
                where=", ".join(sorted({operator_name(n) for n in all_nodes(self._model)})[:8]),
                next_step="choose another --scheme, or leave it in float",
            )
        return model

    # What it gained

    def measured(self, chosen: Chosen, held_out: HeldOut, feeds: Mapping[str, Array], seconds: float) -> Chosen:
        """Measure the model beside the float one; layers that are slower in int8 are put back where that is faster.

        Raises:
            QuantizationError: it is slower all the same, and speed is what it is for.
        """
        self._say("measuring")
        conditions = Conditions(self._engine, feeds, self._opening, seconds)

        def times_of(path: Path) -> dict[str, float]:
            return layer_times(self._engine, path, conditions.options, feeds, chosen.found.layers, seconds / 4)

        before, after = times_of(self._source), times_of(chosen.path)
        chosen = dataclasses.replace(chosen, times=(before, after))
        mixed = self._without_slow_layers(chosen, held_out, sum(after.values()))
        paths = [chosen.path, *([mixed.path] if mixed is not None else [])]
        found, table = speeds(self.path, paths, conditions)
        if mixed is not None and is_faster(table, 2, 1):
            chosen = dataclasses.replace(mixed, speed=found[1], times=(before, times_of(mixed.path)))
        else:
            chosen = dataclasses.replace(chosen, speed=found[0])
        assert chosen.speed is not None
        if chosen.scheme.is_for_speed:
            check_faster(chosen.speed, self._engine)
        return chosen

    def _without_slow_layers(self, chosen: Chosen, held_out: HeldOut, run_seconds: float) -> Chosen | None:
        """Return the choice with slower layers in float too; None if there are none, or it is not within the limits."""
        slower = [n for n in slower_layers(*chosen.times, run_seconds) if n not in chosen.found.left]
        left = (*chosen.found.left, *slower)
        if not slower or len(left) == len(chosen.found.layers):
            return None
        path = chosen.model.without(left)
        accuracy = held_out.measure(self.opened(path))
        if not accuracy.ok:
            return None
        found = dataclasses.replace(chosen.found, path=path, left=left, accuracy=accuracy, tries=chosen.found.tries + 1)
        return dataclasses.replace(chosen, found=found, slower=tuple(slower))

    # The result

    def report(self, chosen: Chosen, samples: CalibrationData, limits: Limits) -> Quantized:
        """Return the result; the caller knows the names of the files."""
        return Quantized(
            "",
            "",
            str(chosen.scheme),
            self._engine,
            tuple(self._layers(chosen)),
            chosen.found.accuracy,
            limits,
            expected_gain(chosen.scheme, self._engine, cpu_flags()),
            chosen.speed,
            onnx_files.weight_bytes(self._model),
            onnx_files.weight_bytes(onnx_files.load(chosen.path)),
            len(samples.calibration) if chosen.scheme.needs_data else 0,
            chosen.found.tries,
            0.0,
            (*samples.findings, *self._findings),
        )

    def _layers(self, chosen: Chosen) -> Iterator[Layer]:
        """Give the layers with weights, and the others that are quantized or were put back to float."""
        there = set(chosen.found.layers)
        for node in self._prepared.graph:
            name = str(node.name)
            if name in there or node.op_type in _WEIGHTED:
                kept = name in there and name not in chosen.found.left
                yield Layer(
                    name,
                    operator_name(node),
                    "quantized" if kept else "float",
                    "" if kept else _why(chosen, name),
                    chosen.found.noise.get(name),
                    chosen.times[0].get(name),
                    chosen.times[1].get(name),
                    origin_of(node).source,
                )

    def save(self, chosen: Chosen, result: Quantized, path: Path) -> None:
        """Save the model with its origins, and with the record of how it was quantized."""
        model = onnx_files.load(chosen.path)
        record = {
            **chosen.scheme.fields,
            "engine": self._engine,
            "calibration_samples": result.calibration_samples,
            "held_out_samples": result.accuracy.samples,
            "float_layers": list(chosen.found.left),
            "limits": {k: v for k, v in to_json(result.limits).items() if v is not None},
            "cosine": result.accuracy.cosine,
            "sqnr_db": to_json(result.accuracy.sqnr),
            "top1": result.accuracy.top1,
        }
        restore(model, self._prepared if self._model.functions else self._model, record)
        onnx_files.save(model, path)


def _why(chosen: Chosen, name: str) -> str:
    """Return the reason why a layer is left in float."""
    left = chosen.found.left
    if name in chosen.slower:
        return "slower in int8"
    if name not in left:
        return f"{chosen.scheme.quantizer} leaves it"
    return "hurts most" if name == left[0] else f"hurts, number {left.index(name) + 1}"


def _too_lossy(scheme: Scheme, whole: Accuracy, limits: Limits, found: Found) -> QuantizationError:
    worst = next(iter(found.noise.items()), None)
    where = f"'{worst[0]}' alone brings the SQNR to {decibels(worst[1]):.1f} dB" if worst else None
    return QuantizationError(
        f"{scheme.name} loses more than was allowed, whichever layers are left in float: {whole} with all layers "
        f"quantized, asked were {limits}",
        where=where,
        next_step="allow more with --max-drop, give more --data, or try another --calibration or --scheme",
    )
