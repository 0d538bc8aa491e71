"""Which layers of a float16 or int8 model need more precision: those that, kept in float, bring it back within limits.

Each layer is asked by itself first: fed with the float model's inputs, how far is what it gives from the float
model's? Layers are put back in this order, the worst first, until the answers are within the tolerance; then each that
turns out not to be needed is taken out again.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from torchport.comparison.quantized_tensors import requantized
from torchport.comparison.restore_layers import Layer, Restorer
from torchport.comparison.tensor_cache import Recorded, fit
from torchport.editing.extract import cut, without_unused_inputs
from torchport.engines.registry import DEFAULT
from torchport.engines.session import open_session
from torchport.errors import EngineError, InputError
from torchport.files import onnx_files
from torchport.irtools.names import Names
from torchport.numerics.check import check_output, rounded
from torchport.numerics.tolerance import EXACT, Tolerance
from torchport.results import OutputCheck
from torchport.tensors import FLOATS, Array

Progress = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Ranked:
    """A layer and the error introduced in it.

    Attributes:
        layer: the layer.
        error: noise beside signal of what it gives, when it is fed with the float model's inputs; infinite where it
            gives NaN or Inf, or where it could not be run.
        introduced: False if the float model's inputs are themselves too large for the layer's precision.
    """

    layer: Layer
    error: float
    introduced: bool = True

    def order(self) -> tuple[bool, bool, float]:
        """Worst first: what overflows, then what overflows because of its inputs, then by error."""
        return math.isfinite(self.error), not self.introduced, -self.error if math.isfinite(self.error) else 0.0


@dataclasses.dataclass(frozen=True)
class Precision:
    """Which layers need more precision.

    Attributes:
        layers: those to keep in float, the one with the largest error of its own first; none may be left out.
        enough: whether the model is within the tolerance with these in float.
        before: the worst answer of the model as it is.
        after: the worst answer with these layers in float.
        tried: how many mixed models were run.
        ranking: every layer with an error of its own, the worst first.
        unjudged: layers that cannot be put back, and why.
    """

    layers: tuple[Layer, ...]
    enough: bool
    before: OutputCheck
    after: OutputCheck
    tried: int
    ranking: tuple[Ranked, ...]
    unjudged: Mapping[str, str]


def needs_precision(
    reference: ir.Model | str | os.PathLike[str],
    candidate: ir.Model | str | os.PathLike[str],
    samples: Mapping[str, Array] | Iterable[Mapping[str, Array]],
    *,
    tolerance: Tolerance,
    engine: str = DEFAULT,
    libraries: Sequence[str | os.PathLike[str]] = (),
    progress: Progress | None = None,
) -> Precision:
    """The layers of a float16 or int8 model that, kept in float32, bring it back within a tolerance, fewest first.

    Args:
        reference: the float original.
        candidate: the model in float16, or quantized: with QuantizeLinear and DequantizeLinear around its layers, with
            quantized operators (QLinearConv), or with dynamic quantization (MatMulInteger).
        samples: the inputs by name, or several of these. All must be within the tolerance.
        tolerance: how far apart answers may be. Integer answers are exact.
        engine: what runs the models.
        libraries: operator libraries you trust, by path.
        progress: called with a line for each step.

    Raises:
        InputError: there are no samples, or the two models do not have the same outputs.

    Example:
        >>> found = needs_precision("fp32.onnx", "fp16.onnx", {"x": x}, tolerance=Tolerance(1e-2, 1e-3))
        >>> [layer.name for layer in found.layers]
        ['encoder.layers.3.norm']
    """
    say = progress or (lambda text: None)
    whole, lower = (m if isinstance(m, ir.Model) else onnx_files.load(m) for m in (reference, candidate))
    given = [samples] if isinstance(samples, Mapping) else list(samples)
    trial = _Trial(whole, given, tolerance, engine, libraries)
    before, worst = trial.of(lower)
    if before.ok:
        return Precision((), True, before, before, 0, (), {})
    restorer = Restorer(whole, lower, engine=engine, libraries=libraries)
    ranking = _Isolated(restorer, Recorded(whole, given[worst], engine=engine, libraries=libraries)).ranking(say)
    search = _Search(restorer, trial, [r.layer for r in ranking], say)
    layers = search.fewest()
    after = search.seen[frozenset(layers or search.ranked)] if search.ranked else before
    return Precision(tuple(layers), after.ok, before, after, len(search.seen), tuple(ranking), restorer.unjudged)


class _Trial:
    """Compares models with the float model's answers, which are computed once."""

    def __init__(
        self,
        reference: ir.Model,
        samples: Sequence[Mapping[str, Array]],
        limit: Tolerance,
        engine: str,
        libraries: Sequence[str | os.PathLike[str]],
    ) -> None:
        if not samples:
            raise InputError("there are no samples to judge by", next_step="give at least one set of inputs")
        self._samples, self._limit, self._engine, self._libraries = samples, limit, engine, libraries
        session = open_session(reference, engine, libraries=libraries)
        self._right = [session.run(sample) for sample in samples]

    def of(self, model: ir.Model) -> tuple[OutputCheck, int]:
        """The worst answer, and the number of its sample."""
        session = open_session(model, self._engine, libraries=self._libraries)
        dtypes = {i.name: i.dtype for i in session.inputs}
        found: list[tuple[OutputCheck, int]] = []
        for number, (sample, right) in enumerate(zip(self._samples, self._right, strict=True)):
            with np.errstate(all="ignore"):  # numbers that overflow are what is looked for
                answers = session.run({n: rounded(a, dtypes.get(n, "")) for n, a in sample.items()})
            if set(answers) != set(right):
                raise InputError(
                    "the two models do not have the same outputs",
                    where=", ".join(sorted(right)),
                    next_step="give two models with the same output names; `torchport edit` renames them",
                )
            found += [(self._check(name, right[name], answers[name]), number) for name in right]
        return max(found, key=lambda pair: (not pair[0].ok, _noise(pair[0])))

    def _check(self, name: str, right: Array, answer: Array) -> OutputCheck:
        is_float = right.dtype.name in FLOATS
        return check_output(name, right, rounded(answer, right.dtype.name), self._limit if is_float else EXACT)


class _Isolated:
    """Runs each layer by itself, on the float model's values."""

    def __init__(self, restorer: Restorer, recorded: Recorded) -> None:
        self._restorer, self._recorded = restorer, recorded
        self._values = Names(restorer.candidate).values

    def ranking(self, say: Progress) -> list[Ranked]:
        """All layers that have an error of their own, the worst first; of equals the one that runs first."""
        found: list[Ranked] = []
        layers = self._restorer.layers
        last = {name: i for i, layer in enumerate(layers) for name in layer.takes}
        for i, layer in enumerate(layers):
            say(f"layer {i + 1} of {len(layers)}: {layer.name}")
            found.append(self._ranked(layer))
            self._recorded.keep_only(n for n in last if last[n] > i)
        return sorted((r for r in found if r.error > 0), key=Ranked.order)

    def _ranked(self, layer: Layer) -> Ranked:
        right = self._recorded.values([*layer.takes, *layer.gives])
        begin = {str(v.name): n for n in layer.takes for v in self._begins(n)}
        end = {str(v.name): n for n in layer.gives for v in self._ends(n)}
        try:
            part = without_unused_inputs(cut(self._restorer.candidate, list(begin), list(end)))
            feeds = {n: rounded(right[begin[n]], _dtype(v)) for v in part.graph.inputs if (n := str(v.name)) in begin}
            fit(part, feeds)
            session = open_session(part, self._recorded.engine, libraries=self._recorded.libraries)
            with np.errstate(all="ignore"):
                answers = session.run(feeds)
        except (EngineError, InputError):  # it cannot be run alone: that it is harmless is not known
            return Ranked(layer, math.inf, introduced=False)
        checks = [
            check_output(n, right[end[n]], rounded(a, right[end[n]].dtype.name), EXACT) for n, a in answers.items()
        ]
        return Ranked(layer, max(map(_noise, checks)), all(map(_finite, feeds.values())))

    def _begins(self, name: str) -> list[ir.Value]:
        """Where a layer begins: behind the quantization of its input, which belongs to the layer that gives it."""
        found = self._restorer.carriers.of(name, self._values)
        return found[-1:] if found[-1].is_graph_input() else found

    def _ends(self, name: str) -> list[ir.Value]:
        """Where a layer ends: behind the quantization of its output."""
        found = self._restorer.carriers.of(name, self._values)
        return requantized(found[-1]) or found[-1:]


class _Search:
    """Finds the fewest layers that do, in the order of a ranking."""

    def __init__(self, restorer: Restorer, trial: _Trial, ranked: Sequence[Layer], say: Progress) -> None:
        self._restorer, self._trial, self._say = restorer, trial, say
        self.ranked = list(ranked)
        self.seen: dict[frozenset[Layer], OutputCheck] = {}

    def fewest(self) -> list[Layer]:
        """The layers to put back; none if even all of them are not enough."""
        count = 1
        while count < len(self.ranked) and not self._passes(self.ranked[:count]):
            count *= 2
        count = min(count, len(self.ranked))
        if not count or not self._passes(self.ranked[:count]):
            return []
        failing = count // 2
        while count - failing > 1:
            middle = (count + failing) // 2
            failing, count = (failing, middle) if self._passes(self.ranked[:middle]) else (middle, count)
        return self._thinned(self.ranked[:count])

    def _thinned(self, chosen: list[Layer]) -> list[Layer]:
        """Without those that are not needed, many at once first, the harmless ones before the bad."""
        size = len(chosen) // 2
        while size:
            place = len(chosen)
            while place > 0:
                rest = chosen[: max(0, place - size)] + chosen[place:]
                if rest and self._passes(rest):
                    chosen = rest
                place -= size
            size //= 2
        return chosen

    def _passes(self, layers: Sequence[Layer]) -> bool:
        key = frozenset(layers)
        if key not in self.seen:
            self.seen[key], _ = self._trial.of(self._restorer.mixed(layers))
            word = "enough" if self.seen[key].ok else "not enough"
            self._say(f"{len(layers)} of {len(self.ranked)} layers in float: {word}")
        return self.seen[key].ok


def _noise(check: OutputCheck) -> float:
    """Noise beside signal: 0 for the same, infinite where NaN or Inf came in."""
    if check.ok or check.sqnr == math.inf:
        return 0.0
    return math.inf if check.sqnr == -math.inf or not math.isfinite(check.max_abs) else 10 ** (-check.sqnr / 20)


def _dtype(value: ir.Value) -> str:
    return value.dtype.numpy().name if value.dtype is not None else ""


def _finite(array: Array) -> bool:
    return array.dtype.name not in FLOATS or bool(np.isfinite(array.astype(np.float64)).all())
