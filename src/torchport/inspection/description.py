"""The description of a model: its records, its text for a terminal, and its JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from torchport.inspection.cost import ASSUMED, Cost
from torchport.irtools.polynomials import Amount, Size
from torchport.results import Record, TensorInfo
from torchport.terminal import WIDTH, clip, human, human_bytes, shape_text, table, wrapped


@dataclasses.dataclass(frozen=True)
class Weight:
    """A tensor stored with the model; `file` is the data file it lies in, empty for the `.onnx` itself."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    file: str = ""


@dataclasses.dataclass(frozen=True)
class DtypeTotal:
    """All weights of one dtype."""

    dtype: str
    count: int
    elements: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class LocalFunction:
    """A function defined in the model: its nodes, and from how many places it is called."""

    name: str
    nodes: int
    calls: int


@dataclasses.dataclass(frozen=True)
class Subgraph:
    """A branch or loop body: the node it belongs to, and the values it takes from outside."""

    node: str
    operator: str
    attribute: str
    nodes: int
    captured: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class OwnOperator:
    """An operator of a domain that is neither ONNX's nor an engine's, and the library the metadata names for it."""

    name: str
    count: int
    library: str = ""
    sha256: str = ""
    body: bool = False


@dataclasses.dataclass(frozen=True)
class Module:
    """A module of the PyTorch model, with those inside it: nodes, parameters and multiply-adds."""

    path: str
    nodes: int
    parameters: int
    multiply_adds: int | Amount


@dataclasses.dataclass(frozen=True)
class Description(Record):
    """What a model is made of.

    Attributes:
        path: the file, empty for a model in memory.
        opsets: versions by domain; ONNX's own domain is ``ai.onnx``.
        metadata: as stored, torchport's own entries aside.
        origin: torchport's entries: the route, the versions, why it is unproven.
        proof: the summary saved with the model, None if there is none.
        nodes: of the graph, its branches and loop bodies, and its functions.
        weights: the largest first.
        parameters: numbers in float weights and quantized ones; shapes, indices and single numbers are none.
        operators: how many nodes there are of each, the most frequent first.
        symbols: the dynamic dimensions.
        cost: of one run, symbolic in the dynamic dimensions.
        at: sizes asked for, and `cost_at` what a run takes then.
        modules: in the order of their first node; a module counts what is inside it.
    """

    path: str
    name: str
    ir_version: int
    opsets: Mapping[str, int]
    producer: str
    model_version: int | None
    metadata: Mapping[str, str]
    origin: Mapping[str, Any]
    proof: Mapping[str, Any] | None
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    nodes: int
    weights: tuple[Weight, ...]
    dtypes: tuple[DtypeTotal, ...]
    parameters: int
    operators: Mapping[str, int]
    symbols: tuple[str, ...]
    cost: Cost
    at: Mapping[str, int]
    cost_at: Cost | None
    functions: tuple[LocalFunction, ...]
    subgraphs: tuple[Subgraph, ...]
    own_operators: tuple[OwnOperator, ...]
    modules: tuple[Module, ...]

    json_properties = ("weight_bytes",)

    @property
    def weight_bytes(self) -> int:
        return sum(weight.bytes for weight in self.weights)

    def __str__(self) -> str:

        return text(self)


# A description as text that fits a terminal of 80 columns.

_FEW = 10


def text(description: Description, *, everything: bool = False, depth: int = 2) -> str:
    """All sections that have something to say.

    Args:
        description: what to show.
        everything: every weight, operator and module, not the first ten.
        depth: how far into the tree of modules to go.
    """
    most = 10**9 if everything else _FEW
    sections = [
        _header(description),
        _interface(description),
        _cost(description),
        _weights(description, most),
        _operators(description, most),
        _own(description),
        _functions(description, most),
        _subgraphs(description, most),
        _modules(description, most=10**9 if everything else 2 * _FEW, depth=10**9 if everything else depth),
    ]
    return "\n\n".join(section for section in sections if section)


def amount(size: Size, *, of_bytes: bool = False) -> str:
    """For people: ``1.62M·batch``, ``12.98M``."""
    if isinstance(size, Amount):
        return size.text(of_bytes=of_bytes)
    return human_bytes(size) if of_bytes else human(size)


def short(size: Size) -> str:
    """Its largest term, where the whole is too long for a column."""
    whole = amount(size)
    return whole if len(whole) <= 26 else whole.partition(" + ")[0] + " + …"


def _header(d: Description) -> str:
    opsets = ", ".join(f"{domain} {version}" for domain, version in d.opsets.items())
    lines = [clip(d.path or d.name or "model")]
    lines.append(wrapped("format", f"IR version {d.ir_version}, opset {opsets}"))
    if d.producer:
        lines.append(wrapped("made by", d.producer + (f", route {d.origin['route']}" if "route" in d.origin else "")))
    lines.append(wrapped("proof", _proof(d)))
    for key, value in d.metadata.items():
        lines.append(wrapped("metadata", clip(f"{key}: {' '.join(value.split())}", 2 * WIDTH)))
    return "\n".join(lines)


def _proof(d: Description) -> str:
    if "unproven" in d.origin:
        return f"NONE: saved unproven, {d.origin['unproven']}"
    if d.proof is None:
        return "none is saved with the model"
    cases = d.proof.get("cases")
    passed = cases.get("pass", "?") if isinstance(cases, dict) else "?"
    if not d.proof.get("passed"):
        return "FAILED"
    worst = d.proof.get("max_rel")
    error = f", largest relative error {worst:.1e}" if isinstance(worst, float) else ""
    return f"{passed} cases agreed with PyTorch in {d.proof.get('engine', '?')}{error}"


def _interface(d: Description) -> str:
    rows = [("in", i) for i in d.inputs] + [("out", o) for o in d.outputs]
    return "\n".join(table([(side, info.name, shape_text(info.dtype, info.shape)) for side, info in rows]))


def _cost(d: Description) -> str:
    lines = [
        "size and cost",
        wrapped("parameters", f"{human(d.parameters)} ({d.parameters:,}), {human_bytes(d.weight_bytes)} of weights"),
    ]
    lines += _run(d.cost, notes=True)
    if d.cost_at is not None:
        lines.append("  at " + ", ".join(f"{name}={size}" for name, size in d.at.items()))
        lines += _run(d.cost_at, notes=not d.symbols or bool(d.cost_at.unknown))
    return "\n".join(lines)


def _run(cost: Cost, *, notes: bool) -> list[str]:
    exact = isinstance(cost.multiply_adds, int)
    count = f" ({cost.multiply_adds:,})" if exact and cost.multiply_adds else ""
    known = "at least " if cost.multiply_adds else "unknown"
    total = amount(cost.multiply_adds) + count if cost.multiply_adds or not cost.unknown else ""
    lines = [
        wrapped("mult-adds", (known if cost.unknown else "") + total),
        wrapped("peak memory", f"{amount(cost.peak, of_bytes=True)} of activations at once"),
        wrapped("activations", f"{amount(cost.activations, of_bytes=True)} altogether"),
    ]
    return lines + (_notes(cost) if notes else [])


def _notes(cost: Cost) -> list[str]:
    said = list(cost.notes[:3])
    if isinstance(cost.peak, Amount) and len(cost.peak.terms) > 1:
        said.append(f"the peak is the one if every dynamic dimension is {ASSUMED}; --at tells it for others")
    missing = cost.unknown or cost.unsized
    if missing:
        what = f"{len(cost.unknown)} nodes" if cost.unknown else f"the memory of {len(cost.unsized)} values"
        said.append(f"not counted, as a shape is unknown: {what}, first '{missing[0]}'; sizes given with --at may tell")
    return [wrapped("note", note) for note in said]


def _weights(d: Description, most: int) -> str:
    if not d.weights:
        return ""
    kinds = ", ".join(f"{t.count} {t.dtype} of {human_bytes(t.bytes)}" for t in d.dtypes)
    files = sorted({w.file for w in d.weights if w.file})
    lines = [f"weights: {len(d.weights)}, {human_bytes(d.weight_bytes)}", wrapped("dtypes", kinds)]
    lines += [wrapped("data in", ", ".join(files))] if files else []
    lines += table([_weight_row(w) for w in d.weights[:most]], right=(0,))
    return "\n".join(lines + _rest(len(d.weights), most))


def _weight_row(weight: Weight) -> tuple[str, ...]:
    return human_bytes(weight.bytes), weight.name, shape_text(weight.dtype, weight.shape)


def _operators(d: Description, most: int) -> str:
    heading = f"operators: {len(d.operators)}, {d.nodes} nodes"
    costs = d.cost.by_operator
    rows = [
        (str(n), name, short(costs[name]) + " mult-adds" if name in costs else "") for name, n in d.operators.items()
    ]
    return "\n".join([heading, *table(rows[:most], right=(0,)), *_rest(len(rows), most)])


def _own(d: Description) -> str:
    if not d.own_operators:
        return ""
    rows = []
    for op in d.own_operators:
        runs = f"kernel in {op.library}" if op.library else "body in the model" if op.body else "no library is named"
        rows.append((str(op.count), op.name, runs))
    return "\n".join(["operators of other domains", *table(rows, right=(0,))])


def _functions(d: Description, most: int) -> str:
    if not d.functions:
        return ""
    rows = [(f.name, f"{f.nodes} nodes", f"called {f.calls} times") for f in d.functions]
    return "\n".join([f"local functions: {len(rows)}", *table(rows[:most], right=(1,)), *_rest(len(rows), most)])


def _subgraphs(d: Description, most: int) -> str:
    if not d.subgraphs:
        return ""
    rows = [
        (f"{s.operator}.{s.attribute}", s.node, f"{s.nodes} nodes", f"takes {len(s.captured)} from outside")
        for s in d.subgraphs
    ]
    return "\n".join([f"branches and bodies: {len(rows)}", *table(rows[:most]), *_rest(len(rows), most)])


def _modules(d: Description, *, most: int, depth: int) -> str:
    if not d.modules:
        return ""
    shown = [m for m in d.modules if (m.path.count(".") + 1 if m.path else 0) <= depth]
    rows = [("nodes", "parameters", "mult-adds", "module"), *map(_module_row, shown[:most])]
    deeper = len(d.modules) - len(shown)
    rest = _rest(len(shown), most) or ([f"  and {deeper} deeper ones (--depth, --all)"] if deeper else [])
    return "\n".join(["modules", *table(rows, right=(0, 1, 2)), *rest])


def _module_row(module: Module) -> tuple[str, ...]:
    level = module.path.count(".") + 1 if module.path else 0
    name = module.path.rpartition(".")[2] or "(the model)"
    work = short(module.multiply_adds) if module.multiply_adds != 0 else "-"
    return str(module.nodes), human(module.parameters) if module.parameters else "-", work, "  " * level + name


def _rest(count: int, most: int) -> list[str]:
    return [f"  and {count - most} more (--all shows them)"] if count > most else []
