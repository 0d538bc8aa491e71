"""The profile of a model: time by node, operator, module and line; limits of the machine; what to do about it."""

from __future__ import annotations

import dataclasses
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from torchport.results import Finding, Record
from torchport.terminal import WIDTH, human, human_bytes, table

Bound = Literal["arithmetic", "memory", "neither", "unknown"]
_FAR = 0.1  # below this part of both limits, neither of them is what takes the time
_AMOUNTS = ("m-adds", "bytes")  # columns
_NAMED = 8  # nodes that a line names
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timed(Record):
    """The time of something in one run, beside what it computes and moves.

    Attributes:
        seconds: of one run.
        share: of the run's time, 0 to 1.
        multiply_adds: of convolutions, matrix products and the like; None where a shape is not known.
        bytes_moved: read and written; None where a shape is not known.
        arithmetic: the part of this machine's multiply-add rate that it reaches; None where it is not known.
        memory: the part of this machine's memory bandwidth that it reaches; None where it is not known.
    """

    seconds: float
    share: float
    multiply_adds: int | None = None
    bytes_moved: int | None = None
    arithmetic: float | None = None
    memory: float | None = None

    json_properties: ClassVar[tuple[str, ...]] = ("bound",)

    @property
    def bound(self) -> Bound:
        """Return the limit that is nearer. Far from both, the time goes into neither: into calls, or a slow kernel."""
        if self.arithmetic is None and self.memory is None:
            return "unknown"
        arithmetic, memory = self.arithmetic or 0.0, self.memory or 0.0
        if max(arithmetic, memory) < _FAR:
            return "neither"
        return "arithmetic" if arithmetic >= memory else "memory"

    @property
    def limit_text(self) -> str:
        """Return the nearer limit, for a column: ``31% memory``."""
        if self.bound == "unknown":
            return ""
        known = {"arithmetic": self.arithmetic or 0.0, "memory": self.memory or 0.0}
        name = max(known, key=lambda n: known[n])
        return f"{known[name]:.0%} {name if name == 'memory' else 'arith.'}"

    @property
    def amounts(self) -> tuple[str, str]:
        """Return multiply-adds and bytes, for two columns."""
        return tuple("" if n is None else human(n) for n in (self.multiply_adds, self.bytes_moved))  # type: ignore[return-value]

    @property
    def sentence(self) -> str:
        """Return the time and the limits in words."""
        parts = [f"{self.share:.0%} of the time"]
        if self.arithmetic:
            parts.append(f"{self.arithmetic:.0%} of the arithmetic limit")
        if self.memory and self.bound != "arithmetic":
            parts.append(f"{self.memory:.0%} of the memory limit")
        words = {"arithmetic": "arithmetic-bound", "memory": "memory-bound", "neither": "far from both limits"}
        return ", ".join([*parts, *([words[self.bound]] if self.bound in words else [])])


@dataclasses.dataclass(frozen=True, kw_only=True)
class NodeTime(Timed):
    """One kernel of the engine: a node of the model, several that are fused, or one that the engine inserted.

    Attributes:
        name: the node that computes the most of it, by the model's name; the engine's name of an inserted one.
        operator: the engine's operator.
        kernel: the engine's own name of the kernel.
        nodes: the model's nodes that it computes.
        operators: their operators.
        computes: the same, with those that the exporter folded into nodes.
        module: the module that the most of it comes from.
        source: the Python line that the most of it comes from.
        sources: every Python line that it comes from.
        inserted: the engine added it; module and source are those of the node beside it.
        inside: the loop or branch that it runs in; empty for the main graph.
        calls: in one run.
        in_python: PyTorch runs it, as the engine has no kernel.
        dtype: that it computes in; empty if the engine does not tell.
        device: that runs it, in the engine's own words.
    """

    name: str
    operator: str
    kernel: str
    nodes: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    computes: tuple[str, ...] = ()
    module: str = ""
    source: str = ""
    sources: tuple[str, ...] = ()
    inserted: bool = False
    inside: str = ""
    calls: float = 1.0
    in_python: bool = False
    dtype: str = ""
    device: str = ""

    json_properties = ("bound", "fused")

    @property
    def fused(self) -> bool:
        return len(self.nodes) > 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class OperatorTime(Timed):
    """All kernels of one operator of the engine."""

    operator: str
    kernels: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModuleTime(Timed):
    """A module of the PyTorch model with all that is inside it. Its own part is what no module in it has."""

    module: str
    own_seconds: float

    def __str__(self) -> str:
        return f"{self.module or '(model)'}: {self.sentence}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LineTime(Timed):
    """A line of Python, with the operators of torch that it called."""

    source: str
    operators: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Limits(Record):
    """What this machine can do at most, measured with the engine.

    Attributes:
        cpu: its name.
        threads: the number of threads; None for the engine's own choice.
        engine: with its version.
        multiply_adds: in a second, by dtype.
        bandwidth: bytes in a second, by the bytes that are worked on: small ones stay in caches.
        call_overhead: the seconds that counting adds to the time of each call. They are taken off the kernels' times.
    """

    cpu: str
    threads: int | None
    engine: str
    multiply_adds: Mapping[str, float]
    bandwidth: Mapping[int, float]
    call_overhead: float = 0.0

    def __str__(self) -> str:
        rates = ", ".join(f"{name} {human(rate)}" for name, rate in self.multiply_adds.items())
        moved = ", ".join(f"{human_bytes(rate)} on {human_bytes(size)}" for size, rate in self.bandwidth.items())
        return f"multiply-adds (m-adds) in a second: {rates}; bytes in a second: {moved}"


@dataclasses.dataclass(frozen=True)
class Advice(Record):
    """Something that takes time and need not, or less.

    Attributes:
        kind: attention, norm, transposes, casts, dimensions, tiny-nodes, threads.
        message: what was found, and why it is so.
        next_step: what to do about it.
        gain_seconds: the time of a run that could go away at most, from the measured times.
        gain: the same as a part of the run's time.
        nodes: that it is about.
        sources: Python lines that it is about.
    """

    kind: str
    message: str
    next_step: str
    gain_seconds: float
    gain: float
    nodes: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()

    def __str__(self) -> str:
        gain = f"up to {self.gain:.0%} ({time_text(self.gain_seconds)})" if self.gain >= 0.005 else "no time, but cores"
        return f"{gain}: {self.message}; {self.next_step}"


@dataclasses.dataclass(frozen=True)
class Profile(Record):
    """Where the time of a model goes, in one engine.

    Attributes:
        model: the file.
        engine: its name, with the version in `version`.
        inputs: the shapes that the model was run at.
        threads: that were asked for; None for the engine's own choice.
        run_seconds: of one run without counters of time.
        profiled_seconds: of one run with counters.
        kernel_seconds: of all kernels of a run.
        between_seconds: the engine's own time between kernels: what is left of a run.
        runs: the number of runs that the times are means of.
        nodes: kernels, the longest first.
        operators: by the engine's operators.
        modules: by module, each with all that is inside it, in the order of their paths.
        lines: by Python line.
        removed: nodes of the model that the engine does not run: folded, or not needed.
        limits: of this machine; None if they could not be measured.
        advice: what to do, the largest gain first.
        findings: what else the user should know.
    """

    model: str
    engine: str
    version: str
    inputs: Mapping[str, tuple[int, ...]]
    threads: int | None
    run_seconds: float
    profiled_seconds: float
    kernel_seconds: float
    between_seconds: float
    runs: int
    nodes: tuple[NodeTime, ...]
    operators: tuple[OperatorTime, ...]
    modules: tuple[ModuleTime, ...]
    lines: tuple[LineTime, ...]
    removed: tuple[str, ...] = ()
    limits: Limits | None = None
    advice: tuple[Advice, ...] = ()
    findings: tuple[Finding, ...] = ()

    json_properties = ("accounted", "overhead")

    @property
    def accounted(self) -> float:
        """Return the time of the kernels as a part of the run's time."""
        return self.kernel_seconds / self.run_seconds if self.run_seconds else 0.0

    @property
    def overhead(self) -> float:
        """Return how much longer a run takes with counters, as a part of one without."""
        return self.profiled_seconds / self.run_seconds - 1 if self.run_seconds else 0.0

    def __str__(self) -> str:
        return self.text()

    def text(self, *, top: int = 15, tree: bool = False) -> str:
        """Return the profile for a terminal.

        Args:
            top: rows of each table.
            tree: modules as a tree, in place of the tables by node and module.
        """
        lines = self._head()
        lines += self._tree(top) if tree else [*self._node_rows(top), *self._module_rows(top)]
        lines += [*self._line_rows(top), *([] if tree else self._operator_rows(top)), *self._fused_rows(top)]
        if self.advice:
            lines += ["", "what to do"]
            lines += [_filled("  - ", str(advice)) for advice in self.advice]
        return "\n".join([*lines, *(_filled("  note: ", str(finding)) for finding in self.findings)])

    def _head(self) -> list[str]:
        shapes = ", ".join(f"{name}[{','.join(map(str, shape))}]" for name, shape in self.inputs.items())
        threads = "" if self.threads is None else f", {self.threads} thread{'s' * (self.threads > 1)}"
        rest = self.between_seconds / self.run_seconds if self.run_seconds else 0.0
        first = f"{self.model} in {self.engine} {self.version}" + (f" on {shapes}" if shapes else "") + threads
        run = (
            f"a run takes {time_text(self.run_seconds)}: "
            f"{time_text(self.kernel_seconds)} in {len(self.nodes)} kernels, "
            f"{time_text(self.between_seconds)} ({rest:.0%}) the engine's own time between them; "
            f"counting made it {max(self.overhead, 0.0):.0%} longer, which is left out"
        )
        lines = [_filled("", first), _filled("  ", run)]
        return [*lines, *([_filled("  limits: ", str(self.limits))] if self.limits else [])]

    def _node_rows(self, top: int) -> list[str]:
        rows = [("share", "time", "operator", "node", "line", *_AMOUNTS, "of limit")]
        for node in self.nodes[:top]:
            name = "(inserted)" if node.inserted else node.name + (f" +{len(node.nodes) - 1}" if node.fused else "")
            operator = node.operator.rpartition(".")[2]
            limit = "in Python" if node.in_python else node.limit_text
            rows.append((*_times(node), operator, name, _short(node.source), *node.amounts, limit))
        return _section("nodes", rows, len(self.nodes) - top, right=(0, 1, 5, 6, 7))

    def _module_rows(self, top: int) -> list[str]:
        found = sorted((m for m in self.modules if m.module), key=lambda m: -m.own_seconds)
        rows = [("own time", "share", "all", "module", *_AMOUNTS, "of limit")]
        rows += [(time_text(m.own_seconds), *_times(m), m.module, *m.amounts, m.limit_text) for m in found[:top]]
        return _section("modules", rows, len(found) - top, right=(0, 1, 2, 4, 5, 6)) if found else []

    def _line_rows(self, top: int) -> list[str]:
        rows = [("share", "time", "line", "torch operators", *_AMOUNTS, "of limit")]
        rows += [
            (
                *_times(line),
                _short(line.source, 3),
                ", ".join(map(_called, line.operators)),
                *line.amounts,
                line.limit_text,
            )
            for line in self.lines
        ][:top]
        return _section("lines", rows, len(self.lines) - top, right=(0, 1, 4, 5, 6)) if self.lines else []

    def _operator_rows(self, top: int) -> list[str]:
        rows = [("share", "time", "kernels", "operator", *_AMOUNTS, "of limit")]
        rows += [(*_times(o), str(o.kernels), o.operator, *o.amounts, o.limit_text) for o in self.operators[:top]]
        return _section("operators", rows, len(self.operators) - top, right=(0, 1, 2, 4, 5, 6))

    def _fused_rows(self, top: int) -> list[str]:
        kinds = Counter((" + ".join(n.computes), n.operator) for n in self.nodes if len(n.computes) > 1)
        rows = [(f"{count} x", f"{inside} → {operator}") for (inside, operator), count in kinds.most_common(top)]
        lines = _section("fused", [("", "nodes → kernel"), *rows], len(kinds) - top, right=(0,)) if kinds else []
        return [*lines, *self._removed_rows()]

    def _removed_rows(self) -> list[str]:
        if not self.removed:
            return []
        more = len(self.removed) - _NAMED
        names = ", ".join(self.removed[:_NAMED]) + (f" and {more} more" if more > 0 else "")
        return ["", _filled("", f"folded into constants or not needed, so not run: {names}")]

    def _tree(self, top: int) -> list[str]:
        """Return modules below each other; those below one part in a hundred are left out."""
        rows = [("module", "share", "time", *_AMOUNTS, "of limit")]
        for module in self.modules:
            if module.share < 0.01 and module.module:
                continue
            depth = len(module.module.split(".")) if module.module else 0
            name = "  " * depth + (module.module.rpartition(".")[2] or "(model)")
            rows.append((name, *_times(module), *module.amounts, module.limit_text))
        share = self.between_seconds / self.run_seconds if self.run_seconds else 0.0
        rows.append(("(between nodes)", f"{share:.1%}", time_text(self.between_seconds), "", "", ""))
        return _section("tree", rows, 0, right=(1, 2, 3, 4, 5))


def _times(timed: Timed) -> tuple[str, str]:
    return f"{timed.share:.1%}", time_text(timed.seconds)


def _section(title: str, rows: Sequence[Sequence[str]], more: int, *, right: Sequence[int]) -> list[str]:
    lines = ["", title, *table(rows, right=right)]
    return [*lines, f"  and {more} more: --top"] if more > 0 else lines


def _short(source: str, parts: int = 2) -> str:
    """Return the end of a path with its line: ``blocks/attention.py:31``."""
    return "/".join(source.split("/")[-parts + 1 :])


def _called(operator: str) -> str:
    """Return a torch operator without its namespace and overload: ``linear`` of ``aten.linear.default``."""
    return operator.split(".")[1] if operator.startswith("aten.") and operator.count(".") else operator


def time_text(seconds: float) -> str:
    """Return a time with its unit."""
    for factor, unit in _UNITS:
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}" if seconds / factor < 999.5 else f"{seconds / factor:.0f} {unit}"
    return "<1 µs"


def _filled(start: str, text: str) -> str:
    options = {"break_long_words": False, "break_on_hyphens": False}
    return textwrap.fill(text, WIDTH, initial_indent=start, subsequent_indent=" " * 4, **options)  # type: ignore[arg-type]
