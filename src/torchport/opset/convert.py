"""Gives a model the opset its target wants, with the same meaning, or says exactly what stands in the way.

onnx's own converter forgets where nodes come from and drops local functions; onnxscript's covers 18 to 25, upwards
only, and leaves a node it cannot convert as it was. So both ways are walked by the rules in `opset.rules`, one
border at a time, and what no rule is sure of is refused.

Example:
    >>> older = convert(model, 13)
    >>> older.opset_imports[""]
    13
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import onnx
import onnx_ir as ir

from torchport.errors import OpsetError, OptionError
from torchport.files.onnx_files import ModelLike, as_model
from torchport.irtools.inference import infer_missing
from torchport.irtools.names import FreshNames
from torchport.irtools.traversal import all_nodes, bodies, inlined, opset_of
from torchport.opset.steps import Blocker, Steps

SUPPORTED = range(7, onnx.defs.onnx_opset_version() + 1)

_FIRST_IR_OF_DTYPE = {"FLOAT8": 9, "INT4": 10, "FLOAT4": 11, "FLOAT8E8M0": 12, "INT2": 13, "FLOAT6": 14}
_FIRST_IR_OF_FREE_INITIALIZERS = 4
_FIRST_IR_OF_FUNCTIONS = 8
_FIRST_IR_OF_OVERLOADS = 10


def check_range(opset: int) -> None:
    """Refuses an opset that cannot be meant.

    Raises:
        OptionError: the installed onnx has no such opset, or it is older than any runtime still reads.
    """
    if opset in SUPPORTED:
        return
    span = f"{SUPPORTED.start} to {SUPPORTED.stop - 1} can be asked for"
    if opset < SUPPORTED.start:
        raise OptionError(
            f"opset {opset} is older than runtimes read; {span}", next_step="ask for 7 or later; 13 and up are safest"
        )
    what = f"opset {opset} does not exist in the installed onnx; {span}"
    raise OptionError(what, next_step=f"ask for {SUPPORTED.stop - 1} or install a newer onnx")


def convert(model: ModelLike, target: int) -> ir.Model:
    """A model of opset `target` that means the same.

    Branches, loop bodies and local functions are converted too. Where that fails, functions are inlined and small
    constants computed (axes and pad widths, as the TorchScript exporter leaves them), and it is tried again.
    The given model is left as it is; weights are shared, not copied.

    Args:
        model: a model or a file.
        target: the default domain's opset to have.

    Returns:
        A new model whose opset import is exactly `target`.

    Raises:
        OptionError: there is no such opset.
        OpsetError: some operator cannot be expressed there; `blockers` names them, `nearest` is what would work.
    """
    check_range(target)
    model = as_model(model)
    refusals: list[OpsetError] = []
    for prepared in _preparations(model):
        converted, blockers = _attempt(prepared, target)
        if not blockers:
            converted.ir_version = ir_version_for(converted)
            return converted
        refusals.append(_refused(blockers, target, opset_of(model) or target))
    raise min(refusals, key=lambda refusal: abs((refusal.nearest or 0) - target))


def ir_version_for(model: ir.Model) -> int:
    """The smallest IR version that has all the model needs, so that the oldest runtimes still read it.

    At least 4, from which on weights need not be inputs too; 8 for local functions, 10 for several of one name; more
    for narrow dtypes.
    """
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in model.opset_imports.items()]
    needed = [
        _FIRST_IR_OF_FREE_INITIALIZERS,
        onnx.helper.find_min_ir_version_for(imports, ignore_unknown=True),
    ]
    needed += [_FIRST_IR_OF_FUNCTIONS] if model.functions else []
    needed += [_FIRST_IR_OF_OVERLOADS] if any(f.overload for f in model.functions.values()) else []
    return max(*needed, *(_first_ir_of(dtype) for dtype in _dtypes(model)), 0)


def _first_ir_of(dtype: ir.DataType) -> int:
    name = dtype.name.removeprefix("U")
    return max((first for start, first in _FIRST_IR_OF_DTYPE.items() if name.startswith(start)), default=0)


def _dtypes(model: ir.Model) -> set[ir.DataType]:
    values = [value for node in all_nodes(model) for value in (*node.outputs, *node.inputs)]
    values += [*model.graph.inputs, *model.graph.initializers.values()]
    return {value.dtype for value in values if value is not None and value.dtype is not None}


def _attempt(model: ir.Model, target: int) -> tuple[ir.Model, list[Blocker]]:
    infer_missing(model)
    names = FreshNames(model)
    blockers: list[Blocker] = []
    for scope in bodies(model):
        blockers += _carry(scope, target, names)
    return model, blockers


def _preparations(model: ir.Model) -> Iterator[ir.Model]:
    """The model as it is; without functions; with what is constant computed. Each asks more of the model."""
    yield model.clone()
    if any(opset_of(function) not in (None, opset_of(model)) for function in model.functions.values()):
        return  # inlined, its nodes would be read by another opset than they were written for
    if model.functions:
        yield inlined(model)
    folded = inlined(model) if model.functions else model.clone()
    infer_missing(folded)
    present, steps = opset_of(folded), Steps(folded.graph, FreshNames(folded))
    if present is not None and steps.fold(present):
        yield folded


def _carry(scope: ir.Graph, target: int, names: FreshNames) -> list[Blocker]:
    """Carries one scope to `target`; a scope that uses no standard operators has nothing to carry."""
    steps = Steps(scope, names)
    source = opset_of(scope)
    if source is not None and source != target:
        steps.run(source, target)
        steps.verify(source, target)
    scope.opset_imports.pop("ai.onnx", None)
    for graph in steps.graphs():
        graph.opset_imports[""] = target
        for node in graph:
            node.version = None
    return steps.blockers


def _refused(blockers: list[Blocker], target: int, present: int) -> OpsetError:
    nearest = max(b.opset for b in blockers) if target < present else min(b.opset for b in blockers)
    lines = _described(blockers)
    more = f" and {len(lines) - 3} more" if len(lines) > 3 else ""
    works = "keep" if nearest == present else "ask for"
    return OpsetError(
        f"the model, of opset {present}, cannot be expressed in opset {target}",
        where="; ".join(lines[:3]) + more,
        next_step=f"{works} opset {nearest}, the nearest that works",
        blockers=lines,
        nearest=nearest,
    )


def _described(blockers: list[Blocker]) -> list[str]:
    """One line for each operator and reason: ``GridSample (3 nodes, first 'node_grid', first in opset 16)``."""
    ordered = sorted(blockers, key=lambda b: (b.op_type, b.reason))
    lines = []
    for (op_type, reason), group in itertools.groupby(ordered, key=lambda b: (b.op_type, b.reason)):
        nodes = [b.node for b in group]
        count = f"node '{nodes[0]}'" if len(nodes) == 1 else f"{len(nodes)} nodes, first '{nodes[0]}'"
        lines.append(f"{op_type} ({count}, {reason})")
    return lines
