"""What takes time in a profile and need not: each with the time that could go away, from the measured times.

Nothing that takes less than one part in a hundred is mentioned, but for threads that do not help. The gains are upper
bounds: the time of the kernels that would no longer run.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import onnx_ir as ir

from torchport.benchmark.kernel_costs import origins_in
from torchport.benchmark.profile_report import Advice
from torchport.engines.profiling import Kernel, KernelTimes
from torchport.irtools.dims import dim_names
from torchport.irtools.names import name_of
from torchport.irtools.node_reader import is_constant

_LEAST = 0.01  # of the run's time
_NAMED = 3  # nodes or lines that a message names
_TINY = 20e-6  # seconds of a call
_MANY = 20
_LONGEST = 8  # steps from one matrix product of attention to the other
_PRODUCTS = ("MatMul", "Gemm", "FusedMatMul")
_SCALING = ("Mul", "Div", "Add", "Softmax")  # between the products of attention; everything else is in the way
_LAYOUTS = ("Transpose", "ReorderInput", "ReorderOutput", "Reorder")
_NORM_ENDS = ("Div", "Reciprocal", "Mul")


@dataclasses.dataclass(frozen=True)
class Measured:
    """What advice is made from.

    Attributes:
        model: the model, without local functions.
        times: of its kernels.
        run_seconds: of one run.
        between_seconds: the engine's own time between kernels.
        memory_seconds: the seconds that the bytes of some nodes take at the machine's bandwidth; None if unknown.
        threads: times of a run by number of threads, None for the engine's own choice; empty if they were not measured.
        asked_threads: that the profile was made with.
    """

    model: ir.Model
    times: KernelTimes
    run_seconds: float
    between_seconds: float
    memory_seconds: Callable[[Sequence[ir.Node]], float | None]
    threads: Mapping[int | None, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    asked_threads: int | None = None


def advice_for(measured: Measured) -> tuple[Advice, ...]:
    """Return what to do, the largest gain first."""
    found = _Looking(measured).found()
    return tuple(sorted((a for a in found if a.gain >= _LEAST or a.kind == "threads"), key=lambda a: -a.gain))


class _Looking:
    def __init__(self, measured: Measured) -> None:
        self._m = measured
        self._kernels = measured.times.kernels
        self._at = {node: n for n, kernel in enumerate(self._kernels) for node in kernel.nodes}
        self._used: set[int] = set()  # kernels that some advice is about already: their time is not promised twice

    def found(self) -> list[Advice]:
        steps = (self._attention, self._norms, self._batch_norms, self._dimensions, self._casts, self._transposes)
        return [advice for step in (*steps, self._tiny, self._threads) if (advice := step()) is not None]

    def _advice(self, kind: str, message: str, next_step: str, kernels: Iterable[int], keeps: float = 0.0) -> Advice:
        which = sorted(set(kernels) - self._used)
        self._used.update(which)
        seconds = max(sum(self._kernels[n].seconds for n in which) - keeps, 0.0)
        nodes = [node for n in which for node in (self._kernels[n].nodes or self._kernels[n].beside)]
        names = tuple(name_of(node) for n in which for node in self._kernels[n].nodes)
        sources = tuple(dict.fromkeys(o.source for node in nodes for o in origins_in(node) if o.source))
        shown = f"{message}, at {', '.join(_short(s) for s in sources[:_NAMED])}" if sources else message
        shown += f" and {len(sources) - _NAMED} more lines" if len(sources) > _NAMED else ""
        return Advice(kind, shown, next_step, seconds, self._part(seconds), names, sources)

    def _part(self, seconds: float) -> float:
        return seconds / self._m.run_seconds if self._m.run_seconds else 0.0

    def _in_kernels(self, nodes: Collection[ir.Node]) -> set[int]:
        """Return the kernels that compute only such nodes."""
        which = {self._at[node] for node in nodes if node in self._at}
        return {n for n in which if set(nodes).issuperset(self._kernels[n].nodes)}

    # Attention and norms

    def _attention(self) -> Advice | None:
        blocks = [b for node in self._m.model.graph.all_nodes() if (b := _attention_around(node))]
        left = [b for b in blocks if len({self._at.get(n) for n in (b.first, b.softmax, b.last)}) > 1]
        if not left:
            return None
        inner = {n for b in left for n in b.between if n is not b.softmax}
        around = {n for b in left for n in b.transposes}
        strange = Counter(n.op_type for b in left for n in b.between if n.op_type not in _SCALING)
        why = (
            f"{' and '.join(sorted(strange))} between its matrix products {'is' if len(strange) == 1 else 'are'} "
            "no part of what the engine fuses"
            if strange
            else "its projections, scale and mask do not have the form that the engine fuses"
        )
        return self._advice(
            "attention",
            f"attention runs as single nodes {len(left)} time{'s' * (len(left) > 1)}: {why}. Its scale, mask and "
            f"transposes take this time",
            "see if another engine fuses it: torchport engines; or leave a mask out that masks nothing",
            self._in_kernels(inner | around),
        )

    def _norms(self) -> Advice | None:
        groups = [g for node in self._m.model.graph.all_nodes() if (g := _norm_around(node))]
        left = [g for g in groups if len({self._at[n] for n in g if n in self._at}) > 1]
        if not left:
            return None
        alone = {n for g in left for n in g}
        keeps = sum(self._m.memory_seconds(g) or 0.0 for g in left)
        return self._advice(
            "norm",
            f"{len(left)} normalization{'s' * (len(left) > 1)} written out as single nodes, which the engine does not "
            "fuse: each step reads and writes the whole tensor",
            "use torch.nn.LayerNorm or torch.nn.RMSNorm, which export as one node",
            self._in_kernels(alone),
            keeps,
        )

    def _batch_norms(self) -> Advice | None:
        which = [n for n, kernel in enumerate(self._kernels) if _only(kernel, ("BatchNormalization",))]
        if not which:
            return None
        return self._advice(
            "norm",
            f"{len(which)} BatchNormalization{'s' * (len(which) > 1)} stand alone: no convolution before to fold into",
            "put the norm behind the convolution, or fold its scale into the layer that follows",
            which,
        )

    # Moving data

    def _transposes(self) -> Advice | None:
        which = [n for n, k in enumerate(self._kernels) if _only(k, _LAYOUTS) and n not in self._used]
        inserted = sum(not self._kernels[n].nodes for n in which)
        if not which:
            return None
        return self._advice(
            "transposes",
            f"{len(which)} kernels only change the layout of tensors"
            + (f", {inserted} of them inserted by the engine" if inserted else ""),
            "keep one layout from layer to layer, or move the transpose to where the tensor is small",
            which,
        )

    def _casts(self) -> Advice | None:
        which = [n for n, k in enumerate(self._kernels) if _only(k, ("Cast", "Convert")) and n not in self._used]
        inserted = sum(not self._kernels[n].nodes for n in which)
        if not which:
            return None
        return self._advice(
            "casts",
            f"{len(which)} kernels only cast to another dtype"
            + (f", {inserted} inserted as the engine lacks kernels of the model's dtype" if inserted else ""),
            "keep one dtype: torchport edit --set-dtype, or export the model in float32 for this engine",
            which,
        )

    # Many nodes

    def _dimensions(self) -> Advice | None:
        dims = dim_names(self._m.model)
        which = self._in_kernels(_shape_nodes(self._m.model.graph)) if dims else set()
        if not which:
            return None
        names = ", ".join(sorted(dims))
        return self._advice(
            "dimensions",
            f"{len(which)} kernels only compute shapes, as {names} may vary",
            "fix the dimensions that do not vary where it runs: export without --dynamic for them",
            which,
        )

    def _tiny(self) -> Advice | None:
        kernels = self._kernels
        tiny = [n for n, k in enumerate(kernels) if k.seconds < _TINY * max(k.calls, 1) and n not in self._used]
        if len(tiny) < _MANY:
            return None
        calls = sum(kernel.calls for kernel in kernels) or 1.0
        between = self._m.between_seconds * sum(kernels[n].calls for n in tiny) / calls
        found = self._advice(
            "tiny-nodes",
            f"{len(tiny)} of {len(kernels)} kernels take less than {_TINY * 1e6:.0f} µs a call: starting them takes as "
            "long as what they compute",
            "run a larger batch at once, or fuse them: write them as fewer operators",
            tiny,
            keeps=-between,
        )
        return dataclasses.replace(found, sources=found.sources[:_NAMED])

    def _threads(self) -> Advice | None:
        """Compare one thread with the engine's own choice; each pair of measurements must say the same."""
        pairs = list(zip(self._m.threads.get(1, ()), self._m.threads.get(None, ()), strict=True))
        if not pairs:
            return None
        one, many = (min(times) for times in zip(*pairs, strict=True))
        if self._m.asked_threads == 1 and all(b < 0.95 * a for a, b in pairs):
            gain = 1 - many / one
            message, step = "one thread is asked for, and all cores are quicker", "leave --threads out"
        elif self._m.asked_threads != 1 and all(b > 0.95 * a for a, b in pairs):
            gain = max(1 - one / many, 0.0)
            message = "more threads do not help: the work of one node is too small to divide, or the cores are busy"
            step = "give --threads 1, and the other cores to other work"
        else:
            return None
        figures = f"{message} ({one * 1e3:.3g} ms with 1 thread, {many * 1e3:.3g} ms with the engine's own choice)"
        return Advice("threads", figures, step, gain * self._m.run_seconds, gain)


@dataclasses.dataclass(frozen=True)
class _Attention:
    first: ir.Node
    softmax: ir.Node
    last: ir.Node
    between: tuple[ir.Node, ...]
    transposes: tuple[ir.Node, ...]


def _attention_around(softmax: ir.Node) -> _Attention | None:
    """Return the attention that a Softmax is in: products before and behind it, and what stands between."""
    if softmax.op_type != "Softmax" or not softmax.inputs:
        return None
    before = _chain(softmax, _before)
    behind = _chain(softmax, _behind)
    if before is None or behind is None:
        return None
    first, last = before[-1], behind[-1]
    scales = [n for v in first.inputs if (n := _maker(v)) is not None and n.op_type in ("Mul", "Div")]
    sources = [n for node in (first, last, *scales) for v in node.inputs if (n := _maker(v)) is not None]
    users = [user for v in last.outputs for user in v.consumers()]
    transposes = [n for n in (*sources, *users) if n.op_type == "Transpose"]
    return _Attention(
        first, softmax, last, (*reversed(before[:-1]), softmax, *behind[:-1], *scales), tuple(dict.fromkeys(transposes))
    )


def _chain(node: ir.Node, step: Callable[[ir.Node], list[ir.Node]]) -> list[ir.Node] | None:
    """Return the nodes on the way to a matrix product; None if it is not near."""
    paths: list[list[ir.Node]] = [[n] for n in step(node)]
    while paths:
        path = paths.pop(0)
        if path[-1].op_type in _PRODUCTS:
            return path
        if len(path) < _LONGEST:
            paths += [[*path, n] for n in step(path[-1])]
    return None


def _before(node: ir.Node) -> list[ir.Node]:
    return [n for v in node.inputs if (n := _maker(v)) is not None]


def _behind(node: ir.Node) -> list[ir.Node]:
    return [user for v in node.outputs[:1] for user in v.consumers()]


def _maker(value: ir.Value | None) -> ir.Node | None:
    return None if value is None else value.producer()


def _norm_around(root: ir.Node) -> tuple[ir.Node, ...]:
    """Return the nodes of a normalization that is written out around a square root, first to last; none if it is none.

    The mean of squares, of the input or of what is left without its mean; with a small number added, below a root;
    the input is divided by it.
    """
    if root.op_type != "Sqrt":
        return ()
    added = _maker(root.inputs[0])
    mean = next((n for n in _before(added) if n.op_type == "ReduceMean"), None) if added is not None else None
    if added is None or added.op_type != "Add" or mean is None:
        return ()
    square = _maker(mean.inputs[0])
    if square is None or square.op_type not in ("Pow", "Mul"):
        return ()
    centered = [n for n in _before(square) if n.op_type == "Sub"][:1]
    means = [n for node in centered for n in _before(node) if n.op_type == "ReduceMean"]
    ends = [n for n in _behind(root) if n.op_type in _NORM_ENDS]
    ends += [n for end in ends if end.op_type == "Reciprocal" for n in _behind(end) if n.op_type == "Mul"]
    return (*means, *centered, square, mean, added, root, *ends) if ends else ()


def _only(kernel: Kernel, operators: Sequence[str]) -> bool:
    """Check that a kernel computes nothing else; an inserted one is known by the engine's name."""
    if not kernel.nodes:
        return kernel.operator.rpartition(".")[2] in operators
    return all(node.op_type in operators for node in kernel.nodes)


def _shape_nodes(graph: ir.Graph) -> set[ir.Node]:
    """Return the nodes that compute with sizes only: Shape, and what is made of nothing but sizes and constants."""
    found: set[ir.Node] = set()
    for node in graph:
        given = [v for v in node.inputs if v is not None]
        follows = any(v.producer() in found for v in given)
        whole = all(v.dtype in (ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL, None) for v in node.outputs)
        if node.op_type in ("Shape", "Size") or (
            follows and whole and all(v.producer() in found or is_constant(v) for v in given)
        ):
            found.add(node)
    return found


def _short(source: str) -> str:
    return source.rpartition("/")[2]
