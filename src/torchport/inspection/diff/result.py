"""The difference of two models: its records, and its text for a terminal."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterable, Sequence

from torchport.inspection.diff.weights import Apart
from torchport.results import Record
from torchport.terminal import WIDTH, clip


@dataclasses.dataclass(frozen=True)
class Change:
    """Something said about a whole model or function that is said otherwise now; empty where it is not said."""

    what: str
    before: str
    after: str


@dataclasses.dataclass(frozen=True)
class InterfaceChange:
    """An input or output that is another now.

    `what` is ``added``, ``removed``, ``renamed``, ``dtype``, ``shape``, ``order`` (of all of them), or ``source``: the
    output is of the same name and type, but made by something else.
    """

    kind: str
    name: str
    what: str
    before: str
    after: str


@dataclasses.dataclass(frozen=True)
class NodeInfo:
    """A node that only one of the models has: what it reads and makes, and which nodes read that.

    `inside` names the node in whose branch or body it is, empty if it is in none.
    """

    name: str
    operator: str
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    read_by: tuple[str, ...]
    inside: str = ""


@dataclasses.dataclass(frozen=True)
class AttributeChange:
    """An attribute before and after, empty where it is not given; `apart` if it is a tensor of the same shape."""

    name: str
    before: str
    after: str
    apart: Apart | None = None


@dataclasses.dataclass(frozen=True)
class Rewired:
    """A slot of a node that reads something else: ``input 1``, or ``then_branch output 0`` for what a branch gives."""

    slot: str
    before: str
    after: str


@dataclasses.dataclass(frozen=True)
class NodeChange:
    """A node that is another now in more than its name."""

    name: str
    name_after: str
    operator: str
    operator_after: str
    attributes: tuple[AttributeChange, ...] = ()
    inputs: tuple[Rewired, ...] = ()
    inside: str = ""


@dataclasses.dataclass(frozen=True)
class Renamed:
    """A name before and after."""

    before: str
    after: str


@dataclasses.dataclass(frozen=True)
class Nodes:
    """Nodes of a graph, branches and bodies included; `before` and `after` say how many there are."""

    before: int = 0
    after: int = 0
    matched: int = 0
    changed: tuple[NodeChange, ...] = ()
    added: tuple[NodeInfo, ...] = ()
    removed: tuple[NodeInfo, ...] = ()
    renamed: tuple[Renamed, ...] = ()
    tensors_renamed: tuple[Renamed, ...] = ()

    @property
    def same(self) -> bool:
        return not (self.changed or self.added or self.removed or self.renamed or self.tensors_renamed)


@dataclasses.dataclass(frozen=True)
class WeightInfo:
    """A weight that only one of the models has."""

    name: str
    type: str


@dataclasses.dataclass(frozen=True)
class WeightChange:
    """A weight whose type or numbers are others; `apart` where its shape is the same and it holds numbers."""

    name: str
    name_after: str
    type: str
    type_after: str
    apart: Apart | None = None


@dataclasses.dataclass(frozen=True)
class Weights:
    """Weights of a model; the most different come first.

    `moved`: the same numbers, but in a `Constant` node of one model and in an initializer of the other.
    """

    before: int = 0
    after: int = 0
    matched: int = 0
    changed: tuple[WeightChange, ...] = ()
    added: tuple[WeightInfo, ...] = ()
    removed: tuple[WeightInfo, ...] = ()
    renamed: tuple[Renamed, ...] = ()
    moved: tuple[Renamed, ...] = ()

    @property
    def same(self) -> bool:
        return not (self.changed or self.added or self.removed or self.renamed or self.moved)


@dataclasses.dataclass(frozen=True)
class FunctionChange:
    """A local function that was ``added``, ``removed``, ``renamed`` (all else is the same) or ``changed``."""

    name: str
    what: str
    name_after: str = ""
    signature: tuple[Change, ...] = ()
    nodes: Nodes = Nodes()


@dataclasses.dataclass(frozen=True)
class Difference(Record):
    """What differs between two models. Where nodes come from is not compared, nor in which order they are stored.

    Attributes:
        a: the first model's file, or ``a`` for one in memory.
        b: the same for the second.
        header: IR version, opsets, producer and metadata.
        interface: inputs and outputs.
    """

    a: str
    b: str
    header: tuple[Change, ...]
    interface: tuple[InterfaceChange, ...]
    nodes: Nodes
    weights: Weights
    functions: tuple[FunctionChange, ...]

    json_properties = ("same", "only_names")

    @property
    def same(self) -> bool:
        """Nothing differs, names included."""
        return not (self.header or self.interface or self.functions) and self.nodes.same and self.weights.same

    @property
    def only_names(self) -> bool:
        """Something differs, but only what inputs, outputs, nodes, tensors, weights and functions are called."""
        nodes, weights = self.nodes, self.weights
        real = (
            self.header or nodes.changed or nodes.added or nodes.removed or weights.changed or weights.added
            or weights.removed or weights.moved
        )  # fmt: skip
        others = [*(c.what for c in self.interface), *(f.what for f in self.functions)]
        return not self.same and not real and set(others) <= {"renamed"}

    def __str__(self) -> str:

        return text(self)


# A difference as text that fits a terminal of 80 columns: counts first, then what tells most.

_FEW = 10
_LONGEST = 48  # of a name or value, beyond which its middle is left out
_LABEL = 11


def text(difference: Difference, *, everything: bool = False) -> str:
    """All sections that have something to say.

    Args:
        difference: what to show.
        everything: every entry, not the first ten of a kind.
    """
    d, most = difference, 10**9 if everything else _FEW
    if d.same:
        return f"{d.a} and {d.b} are the same: {_count(d.nodes.before, 'node')}, {_count(d.weights.before, 'weight')}"
    sections = [
        [f"{d.a} → {d.b}", *_wrapped("  ", _summary(d), indent=2)],
        _titled("interface", _listed("", map(_port, d.interface), most)),
        _titled(_total("nodes", d.nodes.before, d.nodes.after), _nodes(d.nodes, most)),
        _titled(_total("weights", d.weights.before, d.weights.after), _weights(d.weights, most)),
        _titled("local functions", [line for f in d.functions for line in _function(f, most)]),
        _titled("header", _listed("", (f"{c.what}: {_arrow(c.before, c.after)}" for c in d.header), most)),
    ]
    return "\n\n".join("\n".join(section) for section in sections if section)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _summary(d: Difference) -> str:
    """How many of each, in one sentence."""
    if d.only_names:
        return "only names differ"
    counts = [
        (d.nodes.changed, "node changed", "nodes changed"),
        (d.nodes.added, "node added", "nodes added"),
        (d.nodes.removed, "node removed", "nodes removed"),
        (d.weights.changed, "weight changed", "weights changed"),
        (d.weights.added, "weight added", "weights added"),
        (d.weights.removed, "weight removed", "weights removed"),
        (d.interface, "change of the interface", "changes of the interface"),
        (d.functions, "change of local functions", "changes of local functions"),
        (d.header, "change of the header", "changes of the header"),
        (d.nodes.renamed, "node renamed", "nodes renamed"),
        (d.weights.renamed, "weight renamed", "weights renamed"),
        (d.weights.moved, "constant moved", "constants moved"),
    ]
    return ", ".join(f"{len(found):,} {one if len(found) == 1 else many}" for found, one, many in counts if found)


def _total(what: str, before: int, after: int) -> str:
    return f"{what}: {before:,}" if before == after else f"{what}: {before:,} → {after:,}"


def _titled(title: str, lines: list[str]) -> list[str]:
    return [title, *lines] if lines else []


def _wrapped(start: str, line: str, *, indent: int) -> list[str]:
    return textwrap.wrap(line, WIDTH - 2, initial_indent=start, subsequent_indent=" " * indent, break_on_hyphens=False)


def _listed(label: str, entries: Iterable[str], most: int) -> list[str]:
    """Entries under a label in a column of its own; the first few of many."""
    lines: list[str] = []
    every = list(entries)
    start, indent = (f"  {label:<{_LABEL - 2}}", _LABEL) if label else ("  ", 4)
    for entry in every[:most]:
        lines += _wrapped(start, entry, indent=indent + 2 if label else indent)
    if len(every) > most:
        lines.append(f"{' ' * (_LABEL if label else 2)}and {len(every) - most:,} more (--all shows them)")
    return lines


def _short(name: str) -> str:
    return clip(name.replace("\n", " "), _LONGEST)


def _arrow(before: str, after: str) -> str:
    return f"{_short(before) or 'not given'} → {_short(after) or 'not given'}"


def _quoted(name: str) -> str:
    return f"'{_short(name)}'" if name else "nothing"


def _port(change: InterfaceChange) -> str:
    what = f"{change.kind} {_quoted(change.name)}"
    if change.what in ("added", "removed"):
        return f"{what} {change.what}: {_short(change.before or change.after)}"
    if change.what == "renamed":
        return f"{what} renamed to {_quoted(change.after)}"
    if change.what == "order":
        return f"order of the {change.kind}s: {_arrow(change.before, change.after)}"
    if change.what == "source":
        return f"{what} comes from {_short(change.after)} instead of {_short(change.before)}"
    return f"{what}: {change.what} {_arrow(change.before, change.after)}"


def _nodes(nodes: Nodes, most: int) -> list[str]:
    return [
        *_listed("changed", map(_node_change, nodes.changed), most),
        *_listed("added", map(_node, nodes.added), most),
        *_listed("removed", map(_node, nodes.removed), most),
        *_renames("renamed", "node", nodes.renamed, nodes.matched, most),
        *_renames("tensors", "tensor", nodes.tensors_renamed, len(nodes.tensors_renamed), most),
    ]


def _node(node: NodeInfo) -> str:
    reads = ", ".join(_quoted(name) for name in node.reads) or "nothing"
    readers = f", read by {', '.join(map(_short, node.read_by[:3]))}" if node.read_by else ""
    more = f" and {len(node.read_by) - 3} more" if len(node.read_by) > 3 else ""
    return f"{_short(node.name)} ({node.operator}){_inside(node.inside)}: reads {reads}{readers}{more}"


def _inside(where: str) -> str:
    return f" inside {_short(where)}" if where else ""


def _node_change(change: NodeChange) -> str:
    told = []
    if change.operator != change.operator_after:
        told.append(f"operator {change.operator} → {change.operator_after}")
    told += [f"{a.name} {_arrow(a.before, a.after)}" + _far(a.apart) for a in change.attributes]
    told += [f"{r.slot} reads {_quoted(r.after)} instead of {_quoted(r.before)}" for r in change.inputs]
    return f"{_short(change.name)} ({change.operator}){_inside(change.inside)}: {'; '.join(told)}"


def _far(apart: Apart | None) -> str:
    return "" if apart is None else f" ({_apart(apart)})"


def _apart(apart: Apart) -> str:
    return (
        f"{apart.differ:,} of {_count(apart.count, 'number')}, by {apart.max_abs:.3g} at most "
        f"({apart.relative:.2g} of the largest) and {apart.mean_abs:.3g} in the mean, cosine {apart.cosine:.6f}"
    )


def _weights(weights: Weights, most: int) -> list[str]:
    return [
        *_listed("changed", map(_weight_change, weights.changed), most),
        *_listed("added", (f"{_short(w.name)} {w.type}" for w in weights.added), most),
        *_listed("removed", (f"{_short(w.name)} {w.type}" for w in weights.removed), most),
        *_renames("renamed", "weight", weights.renamed, weights.matched, most),
        *_moved(weights.moved),
    ]


def _weight_change(change: WeightChange) -> str:
    name = _short(change.name) + (f" (now {_short(change.name_after)})" if change.name != change.name_after else "")
    kind = change.type if change.type == change.type_after else _arrow(change.type, change.type_after)
    return f"{name} {kind}" + (f": {_apart(change.apart)}" if change.apart is not None else "")


def _moved(moved: Sequence[Renamed]) -> list[str]:
    if not moved:
        return []
    line = f"{_count(len(moved), 'constant')} between Constant nodes and weights, numbers the same"
    return _listed("moved", [line], 1)


def _renames(label: str, what: str, renamed: Sequence[Renamed], of: int, most: int) -> list[str]:
    """One line if all are renamed: their names tell nothing then. Of tensors, it never is more."""
    if of > 3 and len(renamed) == of and most == _FEW:
        count = f"all {of:,} {what}s" if label == "renamed" else f"{of:,} renamed"
        return _listed(label, [f"{count}, such as {_rename(renamed[0])}"], 1)
    return _listed(label, map(_rename, renamed), most)


def _rename(renamed: Renamed) -> str:
    return " → ".join(_short(name) or "(no name)" for name in (renamed.before, renamed.after))


def _function(change: FunctionChange, most: int) -> list[str]:
    after = f" → {_short(change.name_after)}" if change.name_after not in ("", change.name) else ""
    lines = _listed(change.what, [f"{_short(change.name)}{after}"], 1)
    said = [*(f"{c.what}: {_arrow(c.before, c.after)}" for c in change.signature)]
    return [*lines, *("  " + line for line in (*_listed("", said, most), *_nodes(change.nodes, most)))]
