"""The records that users get back: tensors, dims, origins, findings, attempts, cases, proofs, exports."""

from __future__ import annotations

import dataclasses
import html
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:
    import onnx_ir as ir

Verdict = Literal["pass", "fail", "outside", "ill-conditioned", "error"]
Outcome = Literal["passed", "failed"]

SCHEMA = 1
"""The version of the JSON form. It is counted up when a field is removed or changes its meaning, not for a new one."""


class Record:
    """Base of the records that users get back. Every record is a frozen dataclass with a JSON form.

    Attributes:
        json_properties: properties that stand in the JSON form beside the fields.
        json_omits: fields that JSON cannot hold, such as a model.
    """

    json_properties: ClassVar[tuple[str, ...]] = ()
    json_omits: ClassVar[tuple[str, ...]] = ()

    def to_json(self) -> dict[str, Any]:
        """Return dicts, lists, texts and numbers, with the version of the form as ``schema``."""
        return {"schema": SCHEMA, **to_json(self)}

    def _repr_html_(self) -> str:
        """Show the record's text in a notebook, which would print all of its fields else."""
        return f"<pre>{html.escape(str(self))}</pre>"


def to_json(value: Any) -> Any:
    """Return a value as JSON has it: records as dicts, tuples as lists; an infinity or NaN as text.

    A class that is no record, such as a polynomial, has a method `json_form`.
    """
    if hasattr(value, "json_form"):
        return value.json_form()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [f.name for f in dataclasses.fields(value) if f.name not in getattr(value, "json_omits", ())]
        return {name: to_json(getattr(value, name)) for name in (*names, *getattr(value, "json_properties", ()))}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


@dataclasses.dataclass(frozen=True)
class TensorInfo:
    """One input or output of a model: its name, dtype, and shape (a name where dynamic, None where unknown)."""

    name: str
    dtype: str
    shape: tuple[int | str | None, ...] | None

    def __str__(self) -> str:
        shape = "?" if self.shape is None else ",".join("?" if d is None else str(d) for d in self.shape)
        return f"{self.name}: {self.dtype}[{shape}]"


@dataclasses.dataclass(frozen=True)
class Dim:
    """A dynamic dimension. The same name means the same size everywhere.

    A dimension may hang on another: torch's ``2 * Dim("half") + 1`` has the root ``half``, scale 2 and offset 1.

    Attributes:
        name: the name it keeps in the saved model.
        min: smallest size the root may take.
        max: largest size the root may take, None for no bound.
        root: the dimension it hangs on; itself by default.
    """

    name: str
    min: int = 0
    max: int | None = None
    root: str = ""
    scale: int = 1
    offset: int = 0

    def __post_init__(self) -> None:
        if not self.root:
            object.__setattr__(self, "root", self.name)

    def size(self, root_size: int) -> int:
        return self.scale * root_size + self.offset

    def root_size(self, size: int) -> int | None:
        """The root's size when this dimension has `size`; None when no root size gives it."""
        quotient, rest = divmod(size - self.offset, self.scale)
        return None if rest else quotient

    def allows(self, root_size: int) -> bool:
        return self.min <= root_size and (self.max is None or root_size <= self.max)


MARK = "torchport.python_call"  # on a node: the PyTorch call it stands for, in this process only; never saved


@dataclasses.dataclass(frozen=True)
class Origin:
    """Where an ONNX node comes from."""

    module: str = ""
    source: str = ""
    operator: str = ""

    def __str__(self) -> str:
        parts = [self.source, f"module '{self.module}'" if self.module else "", self.operator]
        return ", ".join(p for p in parts if p) or "unknown"


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something the user should know that is no failure."""

    message: str
    where: str = ""

    def __str__(self) -> str:
        return f"{self.message} ({self.where})" if self.where else self.message


@dataclasses.dataclass(frozen=True)
class Attempt:
    """One try of one route, with the repairs it took."""

    route: str
    outcome: Outcome
    reason: str
    seconds: float
    repairs: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"{self.route}: {self.outcome} in {self.seconds:.1f} s" + (f", {self.reason}" if self.reason else "")
        return text + (f" (repaired: {'; '.join(self.repairs)})" if self.repairs else "")


class AttemptLine(str):
    """A line of progress that says how an attempt ended; `attempt` has the record."""

    attempt: Attempt

    def __new__(cls, attempt: Attempt) -> AttemptLine:
        line = super().__new__(cls, attempt)
        line.attempt = attempt
        return line


@dataclasses.dataclass(frozen=True)
class OutputCheck:
    """How far one output was off in one case. `problem` is empty when it agreed."""

    name: str
    max_abs: float
    max_rel: float
    cosine: float
    sqnr: float
    problem: str = ""

    @property
    def ok(self) -> bool:
        return not self.problem


@dataclasses.dataclass(frozen=True)
class Case:
    """One input given to both models, and how the outputs compare.

    Attributes:
        node: the node at which the engine failed, if it named one.
        varied: the inputs are not the example's own.
    """

    label: str
    shapes: Mapping[str, tuple[int, ...]]
    sizes: Mapping[str, int]
    checks: tuple[OutputCheck, ...]
    verdict: Verdict
    note: str = ""
    node: str = ""
    varied: bool = True

    @property
    def max_abs(self) -> float:
        return max((c.max_abs for c in self.checks), default=float("nan"))

    @property
    def max_rel(self) -> float:
        return max((c.max_rel for c in self.checks), default=float("nan"))

    @property
    def cosine(self) -> float:
        return min((c.cosine for c in self.checks), default=float("nan"))

    @property
    def sqnr(self) -> float:
        return min((c.sqnr for c in self.checks), default=float("nan"))


@dataclasses.dataclass(frozen=True)
class Bound:
    """The sizes of a dimension that a model is good for: from `min` on, and multiples of `step`."""

    min: int = 0
    step: int = 1

    def allows(self, size: int) -> bool:
        return size >= self.min and size % self.step == 0

    def __str__(self) -> str:
        parts = [f"from {self.min} on"] * (self.min > 0) + [f"multiples of {self.step}"] * (self.step > 1)
        return ", ".join(parts)


@dataclasses.dataclass(frozen=True)
class Proof(Record):
    """The numeric evidence that an ONNX model gives the outputs of the PyTorch model, or of another reference.

    Attributes:
        tolerances: those that the caller set, by output.
        bounds: the smallest size of a dimension, or a number that its sizes are multiples of, as they were found.
    """

    cases: tuple[Case, ...]
    findings: tuple[Finding, ...] = ()
    engine: str = ""
    reference: str = "PyTorch"
    tolerances: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    bounds: Mapping[str, Bound] = dataclasses.field(default_factory=dict)

    json_properties = ("passed",)

    @property
    def passed(self) -> bool:
        """At least one case agreed, and none disagreed. The example alone proves nothing where inputs can vary."""
        agreed = [c for c in self.cases if c.verdict == "pass"]
        return bool(agreed) and not self.failures and not self._example_only(agreed)

    def _example_only(self, agreed: Sequence[Case]) -> bool:
        return any(c.varied for c in self.cases) and not any(c.varied for c in agreed)

    @property
    def failures(self) -> tuple[Case, ...]:
        return tuple(c for c in self.cases if c.verdict in ("fail", "error"))

    def count(self, verdict: Verdict) -> int:
        return sum(c.verdict == verdict for c in self.cases)

    def summary(self) -> dict[str, Any]:
        """What goes into the saved model's metadata: small, and the same each time."""
        agreed = [c for c in self.cases if c.verdict == "pass"]
        return {
            "passed": self.passed,
            "engine": self.engine,
            "cases": {v: self.count(v) for v in ("pass", "fail", "error", "outside", "ill-conditioned")},
            "max_abs": max((c.max_abs for c in agreed), default=None),
            "max_rel": max((c.max_rel for c in agreed), default=None),
            "min_cosine": min((c.cosine for c in agreed), default=None),
            "min_sqnr_db": min((c.sqnr for c in agreed if c.sqnr != float("inf")), default=None),
            "sizes": _sizes_seen(agreed),
            "findings": [str(f) for f in self.findings],
            **({"tolerances": {n: dict(t) for n, t in self.tolerances.items()}} if self.tolerances else {}),
        }

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [("case", "sizes", "max abs", "max rel", "SQNR", "verdict")]
        rows += [_row(case) for case in self.cases]
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        lines.insert(1, "  ".join("─" * w for w in widths))
        notes = [f"{c.label}: {c.note}" for c in self.cases if c.note]
        if len(notes) > _MOST_NOTES:
            notes = [*notes[:_MOST_NOTES], f"and {len(notes) - _MOST_NOTES} more like these"]
        notes += [str(f) for f in self.findings]
        return "\n".join([*lines, *map(_bullet, notes), self.verdict_line()])

    def verdict_line(self) -> str:
        if self.passed:
            return f"proven: {self.count('pass')} of {len(self.cases)} cases agree with {self.reference}, none differ"
        if not self.failures and self.count("pass"):
            return f"not proven: {self.reference} refuses every input but the example, which alone proves nothing"
        if not self.failures:
            return f"not proven: none of the {len(self.cases)} cases could be counted"
        return f"NOT proven: {len(self.failures)} of {len(self.cases)} cases differ from {self.reference}"


_MOST_NOTES = 3


def _bullet(note: object) -> str:
    """A note that fits a terminal of 80 columns; long paths are left whole."""
    return textwrap.fill(
        str(note), 80, initial_indent="· ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def _row(case: Case) -> tuple[str, ...]:
    sizes = " ".join(f"{k}={v}" for k, v in case.sizes.items()) or "as example"
    sizes = sizes if len(sizes) <= 26 else sizes[:25] + "…"
    if not case.checks:
        return (case.label, sizes, "-", "-", "-", case.verdict)
    sqnr = "exact" if case.sqnr == float("inf") else f"{case.sqnr:.0f} dB"
    return (case.label, sizes, f"{case.max_abs:.1e}", f"{case.max_rel:.1e}", sqnr, case.verdict)


def _sizes_seen(cases: list[Case]) -> dict[str, list[int]]:
    seen: dict[str, set[int]] = {}
    for case in cases:
        for name, size in case.sizes.items():
            seen.setdefault(name, set()).add(size)
    return {name: sorted(sizes) for name, sizes in seen.items()}


@dataclasses.dataclass(frozen=True)
class Exported(Record):
    """What `torchport.export` gives back."""

    model: ir.Model
    route: str
    attempts: tuple[Attempt, ...]
    proof: Proof
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    findings: tuple[Finding, ...] = ()
    path: str | None = None
    opset: int = 0
    proven: bool = True

    json_omits = ("model",)

    def __str__(self) -> str:
        verb = "exported" if self.proven else "saved UNPROVEN" if self.path else "UNPROVEN"
        head = f"{verb} by route '{self.route}', opset {self.opset}" + (f" → {self.path}" if self.path else "")
        body = [f"  in   {i}" for i in self.inputs] + [f"  out  {o}" for o in self.outputs]
        return "\n".join([head, *body, str(self.proof), *map(_bullet, self.findings)])
