"""tp.operators.coverage: which operators a model uses, and whether each gets to ONNX, before anything is exported."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch

from torchport.capture import models
from torchport.capture.routes import export
from torchport.capture.routes.route import Request
from torchport.capture.source_lines import line_of_stack
from torchport.conversion.options import DEFAULT_OPSET, ExampleOptions
from torchport.conversion.subject import opened
from torchport.errors import CaptureError
from torchport.operators import catalog
from torchport.operators.composition import operator_calls
from torchport.operators.lowering import Lowerings
from torchport.process import silence
from torchport.torch_compat import registries
from torchport.torch_compat.higher_order import translations as flow_translations


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
class Coverage:
    """What a model uses. `note` says how it was found out."""

    uses: tuple[Use, ...]
    note: str

    @property
    def supported(self) -> bool:
        return all(not use.missing for use in self.uses)

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "supported": self.supported}


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
            return export.exported(request, [])[0], "captured by torch.export"
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
    whole, table = export.mapped(program, DEFAULT_OPSET, flow_translations(), Lowerings())
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
