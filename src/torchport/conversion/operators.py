"""The operators a model uses and how each gets to ONNX; an operator's kernel and lowering beside PyTorch."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torchport.capture import models
from torchport.capture.origins import line_of_stack
from torchport.capture.routes import export as export_route
from torchport.capture.routes.route import Request
from torchport.conversion.export import export
from torchport.conversion.options import DEFAULT_OPSET, ExampleOptions
from torchport.conversion.subject import opened
from torchport.engines.session import Session, open_session
from torchport.errors import CaptureError, OptionError, TorchportError
from torchport.numerics.check import check_output
from torchport.numerics.tolerance import tolerance
from torchport.operators import catalog
from torchport.operators.composition import operator_calls
from torchport.operators.definition import Operator
from torchport.operators.lowering import Lowerings
from torchport.process import silence
from torchport.results import Record
from torchport.tensors import dtype_name, to_numpy
from torchport.torch_compat import registries
from torchport.torch_compat.higher_order import translations as flow_translations
from torchport.torch_compat.tracing import tree_flatten, tree_leaves, tree_unflatten


@dataclasses.dataclass(frozen=True)
class Use:
    """One operator of a model.

    Attributes:
        operator: with its overload, ``aten::add.Tensor``.
        count: how often it is called.
        how: ``direct``, ``composed``, ``decomposed``, or empty if it does not get to ONNX.
        onnx: the ONNX operators it ends in, where they can be told.
        missing: what has no mapping: itself, or parts torch takes it apart into.
        alternatives: mapped operators of similar names.
        lines: the user's lines that call it.
    """

    operator: str
    count: int
    how: str
    onnx: tuple[str, ...]
    missing: tuple[str, ...]
    alternatives: tuple[str, ...]
    lines: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Coverage(Record):
    """What a model uses. `note` says how it was found out."""

    uses: tuple[Use, ...]
    note: str

    json_properties = ("supported",)

    @property
    def supported(self) -> bool:
        return all(not use.missing for use in self.uses)


def coverage(model: Any, args: Any = (), *, kwargs: dict[str, Any] | None = None, dynamic: Any = None) -> Coverage:
    """Every operator a model uses, supported or not.

    Args:
        model: an `nn.Module`, a function, or anything `export` takes.
        args: example inputs.
        kwargs: example inputs by name.
        dynamic: which axes may vary, as for `export`.

    Example:
        >>> for use in tp.operators.coverage(model, (x,)).uses:
        ...     print(use.operator, use.how)
    """
    subject = models.subject(model)
    call = models.call(subject, args, kwargs)
    with opened(subject, call, ExampleOptions(dynamic=dynamic), allow_random=True) as source:
        tensors = source.capture_tensors()
        request = Request(call, tensors, source.spec.inputs, opset=DEFAULT_OPSET, program=subject.program)
        program, note = _captured(request)
        with silence():
            return Coverage(tuple(_uses(program)), note)


def _captured(request: Request) -> tuple[torch.export.ExportedProgram, str]:
    if request.program is not None:
        return request.program, "read off the exported program"
    try:
        with silence():
            return export_route.exported(request, [])[0], "captured by torch.export"
    except CaptureError:
        from torchport.capture.routes.rewrite import rewritten_program

        with silence():
            return rewritten_program(request, [])[1], "captured by torch.export, with its control flow rewritten"


def _uses(program: torch.export.ExportedProgram) -> Iterator[Use]:
    nodes = list(_calls(program.graph_module))
    counts = Counter(_name(n.target) for n in nodes)
    lost = _lost(program)
    for name, count in counts.most_common():
        calls = [n for n in nodes if _name(n.target) == name]
        lines = tuple(dict.fromkeys(line_of_stack(n.meta.get("stack_trace") or "") for n in calls))
        ways = catalog.mappings_of(calls[0].target)
        modern = [w for w in ways if "export" in w.routes]
        missing = lost.get(name, ()) if modern else (name,)
        how = "" if missing else modern[0].how
        onnx = modern[0].onnx if modern else ()
        own = name.partition(".")[0]
        other = catalog.alternatives(own) if missing else ()
        yield Use(name, count, how, onnx, missing, other, tuple(filter(None, lines)))


def _lost(program: torch.export.ExportedProgram) -> dict[str, tuple[str, ...]]:
    """For each operator that torch takes apart, its parts without a mapping."""
    whole, table = export_route.mapped(program, DEFAULT_OPSET, flow_translations(), Lowerings())
    apart = {op: f for op, f in registries.decomposition_table().items() if op not in table}
    decomposed = whole.run_decompositions(apart)
    known = {_name(op) for op in table if registries.is_overload(op)}
    found: dict[str, list[str]] = {}
    for node in _calls(decomposed.graph_module):
        name = _name(node.target)
        if name in known or registries.modern(name):
            continue
        found.setdefault(_source(node) or name, []).append(name)
    return {name: tuple(dict.fromkeys(parts)) for name, parts in found.items()}


def _source(node: torch.fx.Node) -> str:
    """The operator of the captured program that a node was taken from."""
    origin = (node.meta.get("from_node") or [None])[-1]
    while origin is not None and getattr(origin, "from_node", None):
        origin = origin.from_node[-1]
    return str(getattr(origin, "target", "")).replace(".", "::", 1)


_CHECKS = ("aten::_assert", "aten::sym_constrain_range")  # of sizes and types; they are dropped on the way


def _calls(module: torch.nn.Module) -> Iterator[torch.fx.Node]:
    """Every call of an operator, in branches and loops too."""
    return (n for n in operator_calls(module) if not _name(n.target).startswith(_CHECKS))


def _name(operator: Any) -> str:
    schema = registries.schema(operator)
    return f"{schema.name}.{schema.overload_name or 'default'}"


# tp.operators.test: an operator's kernel and lowering beside PyTorch, over sampled inputs, with times.

_ROUNDS = 5


@dataclasses.dataclass(frozen=True)
class Trial:
    """One way to run an operator on one sample, beside PyTorch."""

    operator: str
    sample: str
    way: str
    right: bool
    largest_difference: float
    seconds: float
    torch_seconds: float
    problem: str = ""

    def __str__(self) -> str:
        times = f"{self.seconds * 1e6:.0f} us (PyTorch {self.torch_seconds * 1e6:.0f} us)"
        words = self.problem or f"off by {self.largest_difference:.2g}, {times}"
        return f"{'right' if self.right else 'WRONG'}  {self.way:<8}  {self.sample}: {words}"


def test(operator: Operator) -> list[Trial]:
    """Compare an operator's kernel and its lowering with PyTorch, over its samples.

    Args:
        operator: one defined with `tp.operator`.
    """
    if not isinstance(operator, Operator):
        raise OptionError(f"{operator!r} is no operator of tp.operator", next_step="pass what tp.operator returned")
    ways: dict[str, dict[str, Any]] = {}  # what is put aside for each
    if operator.has_kernel:
        ways["kernel"] = {"lowering": None}
    if operator.lowering is not None:
        ways["lowering"] = {"node": None, "_sources": (), "_library": None}
    if not ways:
        ways["node" if operator.node else "traced"] = {}
    samples = operator.sample_inputs()
    return [_trial(operator, sample, way, aside) for sample in samples for way, aside in ways.items()]


def _trial(operator: Operator, sample: tuple[Any, ...], way: str, changes: dict[str, Any]) -> Trial:
    module, tensors = _module(operator, sample)
    with torch.no_grad():
        wanted = [to_numpy(t.contiguous()) for t in tree_leaves(module(*tensors))]
    torch_seconds = _timed(lambda: module(*tensors))
    try:
        with _changed(operator, changes):
            exported = export(module, tuple(tensors), route="export", allow_unproven=True)
            session = open_session(exported.model)
            given = _answers(session, tensors)
            seconds = _timed(lambda: _answers(session, tensors))
    except TorchportError as error:
        return Trial(operator.name, _named(sample), way, False, float("nan"), 0.0, torch_seconds, _why(error))
    problem, worst = _compared(given, wanted)
    return Trial(operator.name, _named(sample), way, not problem, worst, seconds, torch_seconds, problem)


def _why(error: TorchportError) -> str:
    return f"{error.what} ({error.where})" if error.where else str(error.what)


class _changed:  # noqa: N801 - used as a statement
    """The operator with other parts, for a while."""

    def __init__(self, operator: Operator, changes: dict[str, Any]) -> None:
        self.operator, self.changes = operator, changes

    def __enter__(self) -> None:
        self.before = {name: getattr(self.operator, name) for name in self.changes}
        for name, value in self.changes.items():
            setattr(self.operator, name, value)

    def __exit__(self, *_: object) -> None:
        for name, value in self.before.items():
            setattr(self.operator, name, value)


def _module(operator: Operator, sample: tuple[Any, ...]) -> tuple[torch.nn.Module, list[torch.Tensor]]:
    """A model of nothing but the operator; tensors are its inputs, the rest is fixed."""
    leaves, form = tree_flatten(list(sample))
    places = [n for n, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    class Alone(torch.nn.Module):
        def forward(self, *tensors: torch.Tensor) -> Any:
            full = list(leaves)
            for place, tensor in zip(places, tensors, strict=True):
                full[place] = tensor
            return operator(*tree_unflatten(full, form))

    return Alone(), [leaves[n] for n in places]


def _answers(session: Session, tensors: list[torch.Tensor]) -> list[Any]:
    feeds = {i.name: to_numpy(t) for i, t in zip(session.inputs, tensors, strict=True)}
    return list(session.run(feeds).values())


def _timed(function: Callable[[], Any]) -> float:
    def once() -> float:
        started = time.perf_counter()
        function()
        return time.perf_counter() - started

    return statistics.median(once() for _ in range(_ROUNDS))


def _compared(given: list[Any], wanted: list[Any]) -> tuple[str, float]:
    """What is wrong, and the largest difference."""
    if len(given) != len(wanted):
        return f"{len(given)} outputs, PyTorch has {len(wanted)}", math.inf
    pairs = zip(wanted, given, strict=True)
    checks = [check_output(f"output {n}", w, g, tolerance(w.dtype.name)) for n, (w, g) in enumerate(pairs)]
    problem = next((f"{c.name}: {c.problem}" for c in checks if c.problem), "")
    return problem, max((c.max_abs for c in checks), default=0.0)


def _named(sample: tuple[Any, ...]) -> str:
    return " ".join(_named_one(a) for a in sample)


def _named_one(argument: Any) -> str:
    if isinstance(argument, torch.Tensor):
        return f"{dtype_name(argument.dtype)}{list(argument.shape)}".replace(" ", "")
    if isinstance(argument, (list, tuple)) and any(isinstance(a, torch.Tensor) for a in argument):
        return f"[{' '.join(map(_named_one, argument))}]"
    return str(argument)
