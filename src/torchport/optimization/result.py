"""The result of `tp.optimize`: the model, what each pass did to it, and which patterns were found."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING, Literal

from torchport.results import Finding, Proof, Record
from torchport.terminal import WIDTH, shortened, table, wrapped

if TYPE_CHECKING:
    import onnx_ir as ir

# What a model is optimized for: an engine, or any.
Target = Literal["onnxruntime", "openvino", "portable"]
ONNXRUNTIME: Target = "onnxruntime"
OPENVINO: Target = "openvino"
PassVerdict = Literal["kept", "nothing to do", "rolled back", "not installed"]


@dataclasses.dataclass(frozen=True)
class Pattern:
    """A place where nodes together compute something that has a name.

    Attributes:
        kind: "attention", "layer normalization", "gelu", ...
        node: the last of the nodes, by name.
        fused_into: the operator that stands there now; empty where it was left as it is.
        reason: why it was left.
        origin: the source line the node comes from, if it is known.
    """

    kind: str
    node: str
    fused_into: str = ""
    reason: str = ""
    origin: str = ""


@dataclasses.dataclass(frozen=True)
class PassRun:
    """What one pass did, in all rounds together.

    Attributes:
        name: the pass.
        verdict: what became of its changes.
        nodes_before: the nodes when it first ran, those of branches and functions too.
        nodes_after: the nodes when it had run; of a pass with several rounds, before less what all rounds took out.
        changes: how many changes it made, or would have made.
        seconds: the time it took.
        reason: why it did nothing, or was rolled back.
        node: the node at which it failed or made the model wrong, if that is known.
        error: the largest absolute error that the verified cases had, after this pass and those before and behind it.
        ratio: the model's time with the pass as a part of the time without it, where that was measured.
    """

    name: str
    verdict: PassVerdict
    nodes_before: int
    nodes_after: int
    changes: int
    seconds: float
    reason: str = ""
    node: str = ""
    error: float | None = None
    ratio: float | None = None


@dataclasses.dataclass(frozen=True)
class Optimized(Record):
    """What `tp.optimize` gives back.

    Attributes:
        model: the optimized model.
        target: the engine it is for; "portable" for any.
        passes: what each pass did, in order.
        patterns: attention, normalizations and activations that were found, and what became of them.
        proof: that the model gives the outputs of the one before.
        nodes_before: the nodes of the model as it was given.
        nodes_after: the nodes now.
        domains: operator domains beside ONNX's own that the optimization brought in.
        seconds: the time it took in all.
        path: the file it was saved to; None if it was not.
        findings: what else the user should know.
    """

    model: ir.Model
    target: Target
    passes: tuple[PassRun, ...]
    patterns: tuple[Pattern, ...]
    proof: Proof
    nodes_before: int
    nodes_after: int
    domains: tuple[str, ...]
    seconds: float
    path: str | None = None
    findings: tuple[Finding, ...] = ()

    json_omits = ("model",)

    def __str__(self) -> str:
        to = f" → {self.path}" if self.path else ""
        head = f"{self.nodes_before} → {self.nodes_after} nodes in {self.seconds:.1f} s, for {self.target}{to}"
        operators = f"of {', '.join(self.domains)} too: it runs in {self.target} only" if self.domains else ""
        lines = [shortened(head, WIDTH) if not self.path else head, *self._table(), *self._patterns()]
        lines += [wrapped("operators", operators or "ONNX's own only, beside those that the model had")]
        lines += [f"· {finding}" for finding in self.findings]
        return "\n".join([*lines, self.proof.verdict_line()])

    def _table(self) -> list[str]:
        shown = [run for run in self.passes if run.verdict != "nothing to do"]
        rows = [("pass", "nodes", "changes", "time", "verdict")]
        rows += [
            (r.name, f"{r.nodes_after - r.nodes_before:+d}", str(r.changes), f"{r.seconds:.2f} s", r.verdict)
            for r in shown
        ]
        lines = table(rows, right=(1, 2, 3)) if shown else []
        failed = [r for r in shown if r.reason]
        lines += [wrapped(r.verdict, f"{r.name}: {r.reason}" + (f" (node '{r.node}')" * bool(r.node))) for r in failed]
        measured = [r for r in shown if r.ratio is not None and not r.reason]
        if measured:
            names = " and ".join(r.name for r in measured)
            lines.append(wrapped("measured", f"{names}: {measured[0].ratio:.2f} of the time without"))
        idle = [run.name for run in self.passes if run.verdict == "nothing to do"]
        return lines + ([wrapped("no change by", ", ".join(idle))] if idle else [])

    def _patterns(self) -> list[str]:
        fused = Counter((p.kind, p.fused_into) for p in self.patterns if p.fused_into)
        left = Counter((p.kind, p.reason) for p in self.patterns if not p.fused_into)
        lines = [wrapped("fused", f"{count} {kind} into {into}") for (kind, into), count in fused.items()]
        return lines + [wrapped("left", f"{count} {kind}: {reason}") for (kind, reason), count in left.items()]
