"""What a comparison found, and how it is shown."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Mapping
from typing import Literal

from torchport.comparison.mixed_precision import Precision
from torchport.numerics.check import QuickCheck
from torchport.numerics.error_metrics import Figures
from torchport.results import Finding, Origin, Record

State = Literal["agrees", "introduced", "propagated", "differs", "no partner"]

_MARKS = {"agrees": " ", "introduced": "✗", "propagated": "·", "differs": "~", "no partner": "?"}


@dataclasses.dataclass(frozen=True)
class Layer:
    """One tensor of the candidate and its partner.

    Attributes:
        tensor: its name in the candidate.
        node: the node that makes it.
        operator: that node's operator.
        origin: where the node comes from.
        partner: what it was compared with; empty if nothing.
        state: ``agrees``; ``introduced``: the node adds the error; ``propagated``: its inputs have the error;
            ``differs``: it is off, but its consumers agree; ``no partner``.
        check: how far off it is.
        isolated: how far off it is when the node gets the reference's inputs.
    """

    tensor: str
    node: str
    operator: str
    origin: Origin
    partner: str
    state: State
    check: QuickCheck | None = None
    isolated: QuickCheck | None = None


@dataclasses.dataclass(frozen=True)
class Divergence:
    """Where the two sides first part.

    Attributes:
        node: the ONNX node that gets what is right and gives what is not.
        operator: its operator.
        origin: its module, Python line and torch operator.
        suspects: nodes among which it is, where it could not be told which; the first is `node`.
        tensor: the tensor that shows the error.
        figures: that tensor beside the reference's.
        inputs: what the node gets, beside the reference's where that has it.
        files: the one-node model and its data, if saved.
        partner: what the tensor was compared with: PyTorch's operator, with the very line that called it, or a tensor.
    """

    node: str
    operator: str
    origin: Origin
    suspects: tuple[str, ...]
    tensor: str
    figures: Figures | None
    inputs: Mapping[str, str]
    files: tuple[str, ...] = ()
    partner: str = ""

    def __str__(self) -> str:
        return self.text()

    def text(self, heading: str = "first divergence") -> str:
        lines = [f"{heading}: node '{self.node}' ({self.operator})"]
        if len(self.suspects) > 1:
            rest = self.suspects[1:]
            others = f"one of the {len(rest)} after it: {_some(rest)}"
            lines.append(_filled("  or " + (others if len(rest) > 1 else f"the one after it: '{rest[0]}'")))
        lines.append(f"  module  {self.origin.module or '(the model itself)'}")
        lines.append(f"  python  {self.origin.source or 'unknown'}")
        lines.append(f"  torch   {self.origin.operator or 'unknown'}")
        for name, text in self.inputs.items():
            lines.append(_filled(f"  in   {name}: {text}"))
        if self.figures is not None:
            lines.append(_filled(f"  out  {self.tensor}: {short(self.figures)}"))
        if self.partner:
            lines.append(_filled(f"  beside {self.partner}"))
        if self.files:
            lines.append(f"  rerun it with {' and '.join(self.files)}")
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class Comparison(Record):
    """How two models, or one in two engines, compare.

    Attributes:
        names: what was compared: the reference and the candidate.
        outputs: the figures of each output, the worst over all samples.
        samples: how many were compared.
        layers: every tensor of the candidate, in order of execution; empty if not asked for.
        first_divergence: where they part; None if nothing differs or layers were not asked for. Where the outputs
            agree, it is a tensor inside that differs beyond doubt.
        worst: the sample with the largest error, and the file it was saved to.
        findings: what else the user should know.
        error: why the candidate could not be asked; empty if it could.
        precision: which layers need more precision, if that was asked for.
        other_inputs: inputs that were not the same on the other side, where its own are known.
    """

    names: tuple[str, str]
    outputs: tuple[Figures, ...]
    samples: int
    layers: tuple[Layer, ...] = ()
    first_divergence: Divergence | None = None
    worst: str = ""
    findings: tuple[Finding, ...] = ()
    error: str = ""
    precision: Precision | None = None
    other_inputs: tuple[str, ...] = ()

    json_properties = ("agrees", "modules")

    @property
    def modules(self) -> dict[str, float]:
        """The worst error, beside the largest number, in each module of the first two levels, in order of execution."""
        found: dict[str, float] = {}
        for layer in self.layers:
            if layer.check is not None and layer.origin.module:
                module = ".".join(layer.origin.module.split(".")[:2])
                found[module] = max(found.get(module, 0.0), layer.check.relative)
        return found

    @property
    def agrees(self) -> bool:
        return not self.error and bool(self.outputs) and all(f.ok for f in self.outputs)

    def __str__(self) -> str:
        return self.text()

    def text(self, *, every: bool = False) -> str:
        """For a terminal of 80 columns; `every` layer, or those that matter."""
        lines = [f"{self.names[1]} against {self.names[0]}, {_samples(self.samples)}"]
        lines += [_filled(f"  {f.name}: {short(f)}{_further(f)}") for f in self.outputs]
        if self.layers:
            lines += ["", *_layer_lines(self.layers, every), *_module_lines(self.modules)]
        if self.first_divergence is not None:
            heading = "first divergence, which the outputs do not show" if self.agrees else "first divergence"
            lines += ["", self.first_divergence.text(heading)]
        if self.precision is not None:
            lines += ["", *_precision_lines(self.precision)]
        lines += [_bullet(str(f)) for f in self.findings]
        if self.worst:
            lines.append(f"worst sample: {self.worst}")
        return "\n".join([*lines, _filled(self.verdict(), "  ")])

    def verdict(self) -> str:
        if self.error:
            return f"NOT compared: {self.error}"
        if not self.outputs:
            return "NOT compared: there is no output"
        wrong = [f for f in self.outputs if not f.ok]
        if wrong:
            return f"DIFFERENT: {len(wrong)} of {len(self.outputs)} outputs differ"
        same = f"{_outputs(len(self.outputs))} within tolerance"
        if self.other_inputs:
            names = ", ".join(f"'{n}'" for n in self.other_inputs)
            return f"OTHER INPUTS: the models agree ({same}), but each side was fed its own {names}"
        return f"the same: {same}"


def _outputs(count: int) -> str:
    return "the output is" if count == 1 else f"all {count} outputs are"


def _samples(count: int) -> str:
    return "one sample" if count == 1 else f"{count} samples"


def short(figures: Figures) -> str:
    """The figures in one line, the problem first where there is one."""
    if figures.problem:
        return figures.problem
    exact = "exact" if figures.max_abs == 0 else f"max abs {figures.max_abs:.1e}, SQNR {figures.sqnr:.0f} dB"
    return f"agrees, {exact}"


def _further(figures: Figures) -> str:
    """What a classifier decides, and the caller's own metrics."""
    shares = {"top-1": figures.top1, "top-5": figures.top5}
    parts = [f"{name} {share:.1%}" for name, share in shares.items() if share is not None]
    parts += [f"{name} {value:.4g}" for name, value in figures.own.items()]
    return f" ({', '.join(parts)})" if parts else ""


def _module_lines(modules: Mapping[str, float]) -> list[str]:
    """One line for each module, where there are several and few enough to read."""
    if not 1 < len(modules) <= _MOST:
        return []
    return ["worst error by module:", *(f"    {name[-48:]:48} {error:>6.0e}" for name, error in modules.items())]


def _precision_lines(precision: Precision) -> list[str]:
    if precision.before.ok:
        return ["precision: no layer needs more"]
    reasons = [_filled(f"    {name}: {why}") for name, why in list(precision.unjudged.items())[:_MOST]]
    if not precision.enough and not precision.ranking:
        return ["precision: no layer was found that could be kept in float32", *reasons]
    if not precision.enough:
        return [f"precision: not enough even with {len(precision.ranking)} layers in float32", *reasons]
    count = len(precision.layers)
    lines = [f"precision: within the tolerance with {count} {'layer' if count == 1 else 'layers'} in float32"]
    return lines + [f"    {layer.name}: {_some(layer.nodes)}" for layer in precision.layers]


def _layer_lines(layers: tuple[Layer, ...], every: bool) -> list[str]:
    counts = {s: sum(x.state == s for x in layers) for s in _MARKS}
    numbers = ", ".join(f"{n} {s}" for s, n in counts.items() if n)
    shown = layers if every else [x for x in layers if x.state in ("introduced", "propagated", "differs")][:_MOST]
    lines = [f"layers: {numbers}", *(_layer_line(x) for x in shown)]
    left = sum(x.state in ("introduced", "propagated", "differs") for x in layers) - len(shown)
    return lines + ([f"    and {left} more that differ (--all shows every tensor)"] if left > 0 and not every else [])


_MOST = 12


def _layer_line(layer: Layer) -> str:
    off = "" if layer.check is None else f"{layer.check.relative:.0e}"
    alone = "" if layer.isolated is None else f"  alone {layer.isolated.relative:.0e}"
    where = layer.origin.module or layer.origin.source
    named = f"{layer.tensor[:28]:28} {layer.operator[:18]:18}"
    return f"  {_MARKS[layer.state]} {named} {off:>6}{alone}  {where[-22:]}".rstrip()


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _filled(text: str, indent: str = "       ") -> str:
    return textwrap.fill(text, 80, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _bullet(text: str) -> str:
    return textwrap.fill(text, 80, initial_indent="· ", subsequent_indent="  ", break_long_words=False)
