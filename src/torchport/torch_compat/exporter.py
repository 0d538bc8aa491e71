"""Patches of torch.onnx and onnxscript that hold while a program is translated. A patch of a part that is not there is
left out, and the export gets a finding."""

from __future__ import annotations

import contextlib
import json
import math
import types
from collections.abc import Iterable, Iterator
from typing import Any

import onnx_ir as ir
import torch

from torchport.torch_compat.parts import has, part, patched


def call_op(*args: Any, **kwargs: Any) -> Any:
    """Build a node with graphs as attributes: ``call_op("Loop", ..., _num_outputs=2, body=graph)``."""
    return part("call_op")(*args, **kwargs)


def lift_constants(program: torch.export.ExportedProgram) -> None:
    """Make inputs of the tensors that the program's graph holds as attributes, in place."""
    module, constants = program.graph_module, part("ConstantAttrMap")()
    program.constants.update(part("lift_constants_pass")(module, program.graph_signature, constants))


@contextlib.contextmanager
def translation_patches() -> Iterator[None]:
    """Hold while a program is translated."""
    with exact_constants(), half_reductions(), quick_patterns(), folded_origins(), unguarded():
        yield


def unguarded() -> contextlib.AbstractContextManager[Any]:
    """Decompose programs without the guards of their capture. Torch puts a call that checks them before the graph and
    traces it with the rest: thousands of nodes for long formulas of sizes, all of which are dropped in the end."""
    name = "_ok_to_generate_guards_fn"
    return patched(name, lambda _: lambda: False) if has(name) else contextlib.nullcontext()


# Numbers that torch.onnx and its optimizer do not take exactly.
#
# Python's numbers are rounded to float32 on their way into a float64 model: `x * 0.1` is off by 1e-9, because 0.1
# becomes a constant of float32 which is then cast. While a program is translated, a number that is cast is a constant
# of float64; cast to float32 it is the same as before.
#
# The optimizer behind torch.onnx takes 1e-8 for zero: `x / (norm + 1e-8)` loses its guard, and zeros answer NaN.
#
# Its rules drop `x + c` and `x * c` where c is zero or one, and compare with a tolerance of 1e-8 and 1e-5. Helium's
# RMSNorm is such a model: NaN for the padding token, right for every other. While a program is translated, zero and one
# are told from other numbers exactly; the tolerance stays for constants such as √2, which rules compare too.
#
# Sources of truth: `OpRecorder._call_op` in torch/onnx/_internal/exporter/_building.py (private: torch has no public
# way to say how numbers become constants; read in torch 2.13), `_match_constant` in onnxscript/rewriter/_matcher.py,
# the rules in onnxscript/rewriter/rules/common.


@contextlib.contextmanager
def exact_constants() -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        if has("matcher_math"):
            stack.enter_context(patched("matcher_math", lambda math: _Exact()))
        if has("_call_op"):
            stack.enter_context(patched("_call_op", _with_exact_casts))
        yield


def _with_exact_casts(call: Any) -> Any:
    def exact(self: Any, signature: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
        if signature.name in ("Cast", "CastLike") and isinstance(inputs.get("input"), float):
            number = ir.tensor(inputs["input"], dtype=ir.DataType.DOUBLE)
            inputs = {**inputs, "input": self.opset.Constant(value=number)}
        return call(self, signature, inputs, *rest, **named)

    return exact


class _Exact(types.ModuleType):
    """`math`, whose `isclose` knows zero and one from what is near them."""

    def __init__(self) -> None:
        super().__init__("math")

    def __getattr__(self, name: str) -> Any:
        return getattr(math, name)

    @staticmethod
    def isclose(found: float, wanted: float, **tolerances: float) -> bool:
        return found == wanted if wanted in (0, 1) else math.isclose(found, wanted, **tolerances)


# Nodes that a rule of the optimizer makes of several keep where all of them come from.
#
# onnxscript gives a new node the metadata of one of the nodes that it replaces: of a convolution and the normalization
# behind it, that of the normalization, and nobody knows the line of the convolution any more. The others' is kept here
# beside it, under one key.
#
# onnxscript 0.7; `MetadataMerger.copy_merged_metadata` in onnxscript/utils/metadata_merger.py.

FOLDED_NODES = "pkg.torch.onnx.folded_nodes"  # a list of the operator and the metadata of each node
_KEPT = ("pkg.torch.onnx.name_scopes", "pkg.torch.onnx.class_hierarchy", "pkg.torch.onnx.stack_trace")


@contextlib.contextmanager
def folded_origins() -> Iterator[None]:
    if not has("copy_merged_metadata"):
        yield
        return
    with patched("copy_merged_metadata", _with_all_origins):
        yield


def _with_all_origins(own: Any) -> Any:
    def copy(merger: Any, from_nodes: Iterable[ir.Node], to: Any) -> None:
        replaced = list(from_nodes)
        own(merger, replaced, to)
        entries = _folded(replaced)
        if len(entries) > 1:
            for node in [to] if isinstance(to, ir.Node) else to:
                node.metadata_props[FOLDED_NODES] = json.dumps(entries)

    return copy


def _folded(nodes: Iterable[ir.Node]) -> list[Any]:
    """Return the operator and the metadata of nodes, and of those that were folded into them, each once."""
    found: list[Any] = []
    for node in nodes:
        before = json.loads(node.metadata_props.get(FOLDED_NODES, "[]"))
        kept = {key: text for key in _KEPT if (text := node.metadata_props.get(key))}
        found += before or ([[node.op_type, kept]] if kept else [])
    return [entry for n, entry in enumerate(found) if entry not in found[:n]]


# Sums and products of float16 and bfloat16 keep their type.
#
# torch's translation casts their input to float32, as PyTorch computes in it, and forgets to cast the answer back. It
# is left in its type here: ONNX has these operators in half precision, and engines add up in float32 all the same.

_RULES = ("ReductionTypePromotionRule", "SumLikeReductionTypePromotionRule")


@contextlib.contextmanager
def half_reductions() -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        if has("TypePromotionSnapshot", *_RULES):
            for rule in _RULES:
                stack.enter_context(patched(rule, _keeping))
        yield


def _keeping(own: Any) -> Any:
    def preview(rule: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        found = own(rule, args, kwargs)
        if args[0].dtype in (torch.float16, torch.bfloat16) and kwargs.get("dtype") is None:
            return part("TypePromotionSnapshot")({0: args[0].dtype}, {}, found.out_dtype)
        return found

    return preview


# Patterns of the ONNX optimizer tried only at nodes of their own operator.
#
# onnxscript tries each of its patterns at each node, and for a pattern with several outputs goes through the whole
# graph before it looks at the node: with the number of nodes squared, half of an export of some thousands of them.
# Where the operator of a pattern's first output is not the node's, it cannot match.
#
# onnxscript 0.7; `SimplePatternMatcher.match` in onnxscript/rewriter/_matcher.py.


@contextlib.contextmanager
def quick_patterns() -> Iterator[None]:
    if not has("match", "MatchResult"):
        yield
        return
    with patched("match", _with_check_of_operator):
        yield


def _with_check_of_operator(own: Any) -> Any:
    def match(matcher: Any, model: ir.Model, graph: ir.Graph | ir.Function, node: ir.Node, **options: Any) -> Any:
        wanted = matcher.pattern.output_nodes[0]._op_identifier  # domain, operator, overload; None if it may be several
        if wanted is not None and wanted[1] != node.op_type:
            return part("MatchResult")().fail("another operator", node)
        return own(matcher, model, graph, node, **options)

    return match
