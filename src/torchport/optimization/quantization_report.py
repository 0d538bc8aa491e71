"""The result of a quantization: each layer, what was measured of the model, and what this CPU can gain."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Literal

from torchport.benchmark.engine_table import filled, time_text
from torchport.optimization.accuracy import Accuracy, Limits
from torchport.results import Finding, Record
from torchport.terminal import human_bytes, table

_MOST_ROWS = 20
Kept = Literal["quantized", "float"]


@dataclasses.dataclass(frozen=True)
class Layer(Record):
    """One layer of the model.

    Attributes:
        name: the node's.
        operator: the node's.
        kept: quantized, or left in float.
        why: the reason why it was left in float; empty if it was not.
        noise: that it puts into the outputs when it alone is quantized, as a part of the signal; None if nobody asked,
            infinite if the engine refuses it so.
        float_seconds: of its kernels in the float model; None if not measured.
        seconds: of its kernels in the quantized model.
        source: the Python line that made the node.
    """

    name: str
    operator: str
    kept: Kept
    why: str = ""
    noise: float | None = None
    float_seconds: float | None = None
    seconds: float | None = None
    source: str = ""

    @property
    def cells(self) -> tuple[str, ...]:
        """Return its row of the table."""
        error = "" if self.noise is None else "fails" if math.isinf(self.noise) else f"{decibels(self.noise):.0f} dB"
        times = ["" if t is None else time_text(t) for t in (self.float_seconds, self.seconds)]
        return (self.name, self.operator, self.kept, error, *times, self.why or self.source)


def decibels(noise: float) -> float:
    """Return noise that is a part of the signal as SQNR."""
    return -10 * math.log10(noise) if noise > 0 else math.inf


@dataclasses.dataclass(frozen=True)
class Speed(Record):
    """How the quantized model's time compares with the float one's, in the same engine.

    Attributes:
        ratio: how many times as fast it is.
        low: the lower end of the 95% interval.
        high: the upper end.
        differs: the difference is beyond the noise.
        float_seconds: the median of a run of the float model.
        seconds: of the quantized one.
    """

    ratio: float
    low: float
    high: float
    differs: bool
    float_seconds: float
    seconds: float

    @property
    def slower(self) -> bool:
        """Check that the quantized model is slower beyond the noise."""
        return self.differs and self.ratio < 1

    def __str__(self) -> str:
        times = f"{time_text(self.float_seconds)} → {time_text(self.seconds)}"
        interval = f"95%: {self.low:.2f} to {self.high:.2f}"
        if not self.differs:
            return f"no difference to float32 beyond the noise ({interval}; {times})"
        word = "SLOWER than float32: " if self.slower else ""
        return f"{word}{self.ratio:.2f} times as fast as float32 ({interval}; {times})"


@dataclasses.dataclass(frozen=True)
class Quantized(Record):
    """What `torchport.quantize` gives back.

    Attributes:
        model: the file that was quantized.
        path: the file that was saved; empty if none was.
        scheme: how it was quantized, in words.
        engine: what the accuracy and the time were measured in.
        layers: of the model, in its order.
        accuracy: of the saved model, on samples that were held out.
        limits: what was asked of it.
        expected: what this CPU can gain from the scheme, said before anything is measured.
        speed: what it gained; None if that was not measured.
        float_bytes: of the weights of the float model.
        bytes: of the weights of the quantized one.
        calibration_samples: that ranges were taken from.
        tries: models that were held against the float one.
        seconds: that all took.
        findings: what else the user should know.
    """

    model: str
    path: str
    scheme: str
    engine: str
    layers: tuple[Layer, ...]
    accuracy: Accuracy
    limits: Limits
    expected: str
    speed: Speed | None
    float_bytes: int
    bytes: int
    calibration_samples: int
    tries: int
    seconds: float
    findings: tuple[Finding, ...] = ()

    json_properties = ("quantized_layers", "float_layers")

    @property
    def quantized_layers(self) -> int:
        """Return the number of layers that are quantized."""
        return sum(layer.kept == "quantized" for layer in self.layers)

    @property
    def float_layers(self) -> int:
        """Return the number of layers that are left in float."""
        return len(self.layers) - self.quantized_layers

    def __str__(self) -> str:
        head = f"{self.model}: {self.scheme}, for {self.engine}" + (f" → {self.path}" if self.path else "")
        return "\n".join([filled("", head), *self._table(), *(filled("  ", line) for line in self._lines())])

    def _lines(self) -> Iterator[str]:
        yield f"layers: {self.quantized_layers} quantized, {self.float_layers} left in float"
        yield f"accuracy on {self.accuracy.samples} held-out samples: {self.accuracy} (asked: {self.limits})"
        yield f"size of the weights: {human_bytes(self.float_bytes)} → {human_bytes(self.bytes)}"
        yield f"expected: {self.expected}"
        yield f"measured: {self.speed}" if self.speed is not None else "measured: nothing (--seconds 0)"
        yield from map(str, self.findings)

    def _table(self) -> list[str]:
        """Return the layers; of many those in float and those that hurt most or take longest."""
        shown = self.layers
        if len(shown) > _MOST_ROWS:
            kept = sorted(shown, key=_weight)[:_MOST_ROWS]
            shown = tuple(layer for layer in self.layers if layer in kept)
        if not shown:
            return []
        head = ("layer", "operator", "kept", "error", "float", "int8", "why, or Python line")
        rows = [head, *(layer.cells for layer in shown)]
        used = [n for n in range(len(head)) if any(row[n] for row in rows[1:])]
        lines = table([[row[n] for n in used] for row in rows], right=[used.index(n) for n in (3, 4, 5) if n in used])
        left = len(self.layers) - len(shown)
        return [*lines, *([f"  and {left} more layers, in --json"] if left else [])]


def _weight(layer: Layer) -> tuple[bool, float, float]:
    """Return the place of a layer among those worth showing."""
    return layer.kept != "float", -(layer.noise or 0.0), -(layer.seconds or 0.0)
