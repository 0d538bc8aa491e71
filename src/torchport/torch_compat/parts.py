"""The private parts of torch, onnxscript and onnxruntime that torchport uses: the one table of them.

    part("detect_fake_mode")               return the object, or raise MissingPartError
    patched("_apply", make)                replace it for a while by what `make` makes of it
    missing()                              the parts that the installed releases lack; `torchport doctor` lists them

A part may be gone, or have other parameters, in the next release. Then the feature that needs it is off, with a finding
on the export, and the rest goes on. Each part says which feature that is.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

from torchport.errors import MissingPartError
from torchport.results import Finding


@dataclasses.dataclass(frozen=True)
class Part:
    """A private part.

    Attributes:
        path: the module, then the object in it: ``torch.overrides:_get_current_function_mode_stack``.
        feature: the feature that is off without it, as the subject of a sentence.
        parameters: the first parameters it must have, where it is a function that is called or replaced by ours.
        attributes: what an instance of the class, made without arguments, must have.
    """

    path: str
    feature: str
    parameters: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()

    @property
    def library(self) -> str:
        return self.path.partition(".")[0].partition(":")[0]

    @property
    def dotted(self) -> str:
        return self.path.replace(":", ".")


_SHAPES = "torch.fx.experimental.symbolic_shapes"
_PROXY = "torch.fx.experimental.proxy_tensor"
_PROMOTION = "torch.onnx._internal.fx.passes.type_promotion"
_EXPORTER = "torch.onnx._internal.exporter"
_SCRIPT = "torch.onnx._internal.torchscript_exporter"
_MATCHER = "onnxscript.rewriter._matcher"

_REWRITE = "the route 'rewrite', which keeps control flow on values"
_SAMPLED = "the quick capture of models with long formulas of sizes, such as shifted windows"
_QUOTIENTS = "quotients of sizes that are rounded, or taken into a branch"
_INSIDE = "modules that are shared, called in a branch or a loop"
_NAMED = "sizes that are computed with a quotient of sizes"
_FILES = "opening PyTorch's own files (.pt, .pt2)"
_FUNCTIONS = "operators whose shapes are found by running them"
_REGISTRY = "the table of operators behind `torchport ops`"
_SCANS = "operators that become a Scan or a Loop"
_QUANTIZED = "the capture of quantized layers"
_VMAP = "torch.vmap inside of control flow"
_GRADIENTS = "the capture of models that take gradients while they run"
_USERS_FLOW = "torch.cond, while_loop, scan, map and associative_scan captured without torch.compile"

PARTS: dict[str, Part] = {
    # the translation to ONNX
    "_call_op": Part(
        f"{_EXPORTER}._building:OpRecorder._call_op",
        "exact Python numbers in float64 models",
        ("self", "op_signature", "named_inputs"),
    ),
    "matcher_math": Part(f"{_MATCHER}:math", "keeping constants that are nearly zero or one"),
    "match": Part(
        f"{_MATCHER}:SimplePatternMatcher.match",
        "the quick optimization of graphs with thousands of nodes",
        ("self", "model", "graph_or_function", "node"),
    ),
    "copy_merged_metadata": Part(
        "onnxscript.utils.metadata_merger:MetadataMerger.copy_merged_metadata",
        "the lines of nodes that were folded into others",
        ("self", "from_nodes", "to"),
    ),
    "MatchResult": Part(
        "onnxscript.rewriter._basics:MatchResult", "the quick optimization of graphs with thousands of nodes"
    ),
    "ReductionTypePromotionRule": Part(
        f"{_PROMOTION}:ReductionTypePromotionRule.preview_type_promotion",
        "sums and products that stay in half precision",
        ("self", "args", "kwargs"),
    ),
    "SumLikeReductionTypePromotionRule": Part(
        f"{_PROMOTION}:SumLikeReductionTypePromotionRule.preview_type_promotion",
        "sums and products that stay in half precision",
        ("self", "args", "kwargs"),
    ),
    "TypePromotionSnapshot": Part(
        f"{_PROMOTION}:TypePromotionSnapshot", "sums and products that stay in half precision"
    ),
    "call_op": Part(f"{_EXPORTER}._torchlib.ops.hop:call_op", _SCANS, ("op_type",)),
    "ConstantAttrMap": Part(
        "torch._export.passes.lift_constants_pass:ConstantAttrMap", "computing weights made of weights beforehand"
    ),
    "lift_constants_pass": Part(
        "torch._export.passes.lift_constants_pass:lift_constants_pass",
        "computing weights made of weights beforehand",
        ("gm", "graph_signature", "constant_attrs"),
    ),
    "_ok_to_generate_guards_fn": Part(
        "torch.export._unlift:_ok_to_generate_guards_fn", "the quick translation of programs with many guards"
    ),
    # symbolic sizes
    "shapes_log": Part(f"{_SHAPES}:log", "reading the guards of a capture"),
    "SymNode.__init__": Part(
        "torch.fx.experimental.sym_node:SymNode.__init__", _SAMPLED, ("self", "expr", "shape_env", "pytype")
    ),
    "SymNode._int_floordiv": Part("torch.fx.experimental.sym_node:SymNode._int_floordiv", _SAMPLED, ("self", "other")),
    "FloorDiv": Part("torch.utils._sympy.functions:FloorDiv", _SAMPLED),
    "ShapeEnv._maybe_evaluate_static": Part(f"{_SHAPES}:ShapeEnv._maybe_evaluate_static", _SAMPLED),
    "SymBool.__bool__": Part("torch:SymBool.__bool__", _REWRITE, ("self",)),
    "SymInt.__bool__": Part("torch:SymInt.__bool__", _REWRITE, ("self",)),
    "SymInt.__index__": Part("torch:SymInt.__index__", _REWRITE, ("self",)),
    "SymFloat.__trunc__": Part("torch:SymFloat.__trunc__", _NAMED),
    "SymFloat.__floor__": Part("torch:SymFloat.__floor__", _NAMED),
    "SymFloat.__ceil__": Part("torch:SymFloat.__ceil__", _NAMED),
    "SymFloat.__round__": Part("torch:SymFloat.__round__", _NAMED),
    "SymFloat.is_integer": Part("torch:SymFloat.is_integer", _QUOTIENTS),
    "SymInt.__truediv__": Part("torch:SymInt.__truediv__", _QUOTIENTS),
    "get_proxy_mode": Part(f"{_PROXY}:get_proxy_mode", _NAMED),
    "_ModuleStackTracer.path_of_module": Part(f"{_PROXY}:_ModuleStackTracer.path_of_module", _INSIDE, ("self", "mod")),
    "_ModuleNotInstalledAsSubmoduleError": Part(f"{_PROXY}:_ModuleNotInstalledAsSubmoduleError", _INSIDE),
    "_sympy_handlers": Part(f"{_PROXY}:_sympy_handlers", _QUOTIENTS),
    "guard_int": Part(f"{_SHAPES}:guard_int", "splitting a tensor into a number of parts that comes from a size"),
    "guard_or_false": Part(f"{_SHAPES}:guard_or_false", "the capture of strided views (as_strided)"),
    "statically_known_true": Part(f"{_SHAPES}:statically_known_true", _REWRITE, ("x",)),
    "ShapeEnv": Part(
        f"{_SHAPES}:ShapeEnv",
        _REWRITE,
        attributes=(
            *("axioms", "backed_var_to_val", "create_unbacked_symint", "deferred_runtime_asserts", "divisible"),
            *("ignore_fresh_unbacked_symbols", "is_unbacked_symint", "num_deferred_runtime_asserts", "replace"),
            *("replacements", "var_to_range", "_maybe_evaluate_static", "_replacements_version_counter"),
            *("_version_counter", "guards"),
        ),
    ),
    "DimConstraints.solve": Part(
        f"{_SHAPES}:DimConstraints.solve", "captures whose conditions on sizes torch cannot solve", ("self",)
    ),
    "_assert_scalar": Part("torch:ops.aten._assert_scalar.default", _REWRITE),
    "preserve_node_meta": Part("torch.fx.traceback:preserve_node_meta", "the lines of models whose sizes were fitted"),
    "_check": Part("torch:_check", "sizes that come from values", ("cond",)),
    # tracing
    "pytree": Part(
        "torch.utils._pytree:tree_map",
        "the structures of inputs and outputs in repairs, in comparisons and in the route 'rewrite'",
        ("func", "tree"),
    ),
    "detect_fake_mode": Part("torch._guards:detect_fake_mode", _REWRITE),
    "unset_fake_temporarily": Part("torch._subclasses.fake_tensor:unset_fake_temporarily", _FUNCTIONS),
    "DisableTorchFunction": Part("torch._C:DisableTorchFunction", "the capture of conditions on constant tensors"),
    "disable_proxy_modes_tracing": Part(
        f"{_PROXY}:disable_proxy_modes_tracing", "autograd functions with a symbolic, and the route 'rewrite'"
    ),
    "is_functorch_wrapped_tensor": Part("torch._C._functorch:is_functorch_wrapped_tensor", _VMAP),
    "_temp_remove_pre_dispatch_torch_function_mode": Part(
        f"{_PROXY}:_temp_remove_pre_dispatch_torch_function_mode", _VMAP
    ),
    "trace_subgraph": Part(f"{_PROXY}:_MakefxTracer.trace_subgraph", _VMAP, ("self", "f")),
    "enable_python_dispatcher": Part(
        "torch._dispatch.python:enable_python_dispatcher",
        "the quick replacement of operators that are composed of others",
    ),
    "make_fx": Part(f"{_PROXY}:make_fx", _GRADIENTS, ("f", "decomposition_table")),
    "decomposition_table": Part("torch._decomp:decomposition_table", _GRADIENTS),
    "_add_batch_dim": Part("torch._functorch.predispatch:_add_batch_dim", _VMAP),
    "_get_current_function_mode_stack": Part("torch.overrides:_get_current_function_mode_stack", _REWRITE),
    "TorchDispatchMode": Part(
        "torch.utils._python_dispatch:TorchDispatchMode", "`torchport compare` with a PyTorch model, layer by layer"
    ),
    "Module.__call__": Part("torch.nn:Module.__call__", "`torchport record`"),
    "dynamo_config": Part("torch._dynamo:config", "a quicker route 'rewrite'"),
    # operators of our own that hold graphs
    "nn.pad_sequence": Part("torch._C._nn:pad_sequence", "pad_sequence of lengths that vary"),
    "DispatchKey": Part("torch._C:DispatchKey", _REWRITE),
    "HigherOrderOperator": Part("torch._ops:HigherOrderOperator", f"{_REWRITE} and vetting .pt2 files"),
    "FakeTensorMode": Part("torch._subclasses.fake_tensor:FakeTensorMode", _REWRITE),
    "ProxyTorchDispatchMode": Part(f"{_PROXY}:ProxyTorchDispatchMode", _REWRITE),
    "track_tensor_tree": Part(f"{_PROXY}:track_tensor_tree", _REWRITE, ("inner_res", "proxy_res")),
    "autograd_not_implemented": Part(
        "torch._higher_order_ops.utils:autograd_not_implemented", _REWRITE, ("op", "deferred_error")
    ),
    "reenter_make_fx": Part("torch._higher_order_ops.utils:reenter_make_fx", _REWRITE, ("fn",)),
    "unique_graph_id": Part("torch._higher_order_ops.utils:unique_graph_id", _REWRITE, ("proxy_mode", "prefix")),
    "scan": Part(
        "torch._higher_order_ops.scan:scan",
        "recurrent layers in float64 and quantized ones",
        ("combine_fn", "init", "xs"),
    ),
    "_hop_compile_and_call": Part("torch._higher_order_ops.utils:_hop_compile_and_call", _USERS_FLOW, ("fn", "args")),
    "generic_associative_scan": Part(
        "torch._higher_order_ops.associative_scan:generic_associative_scan", _USERS_FLOW, ("operator", "leaves")
    ),
    # functions that repairs replace
    "Module._apply": Part("torch.nn:Module._apply", "the capture of layers that are cast in forward", ("self", "fn")),
    "SymInt.__hash__": Part("torch:SymInt.__hash__", "the capture of sizes as keys of a dict or cache", ("self",)),
    "_set_grad_enabled": Part("torch._C:_set_grad_enabled", "the capture of no_grad beside a branch"),
    "_detect_is_causal_mask": Part(
        "torch.nn.modules.transformer:_detect_is_causal_mask",
        "the capture of nn.TransformerEncoder with a mask",
        ("mask", "is_causal", "size"),
    ),
    "Tensor.__setitem__": Part("torch:Tensor.__setitem__", "writes at a place that a value or a size gives"),
    "TensorBase.stride": Part("torch._C:TensorBase.stride", "the capture of strided views (as_strided)"),
    "_get_tracing_state": Part("torch._C:_get_tracing_state", "the capture of strided views (as_strided)"),
    "_set_tracing_state": Part("torch._C:_set_tracing_state", "the capture of strided views (as_strided)"),
    "rnn_functions": Part("torch.nn.modules.rnn:_VF", "recurrent layers with a dynamic sequence"),
    "packing_functions": Part("torch.nn.utils.rnn:_VF", "recurrent layers with a dynamic sequence"),
    "flex_attention_hop": Part("torch.nn.attention.flex_attention:flex_attention_hop", "flex_attention"),
    "flex_attention_debug": Part(
        "torch.nn.attention.flex_attention:_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", "flex_attention"
    ),
    "quantized_decomposed": Part("torch.ao.quantization.fx._decomposed:quantized_decomposed_lib", _QUANTIZED),
    "_ConvNd": Part("torch.ao.nn.quantized.modules.conv:_ConvNd", "the note on overflows in quantized layers"),
    "_is_vnni_supported": Part("torch.cpu:_is_vnni_supported", "the note on overflows in quantized layers"),
    # files
    "PyTorchFileReader": Part("torch._C:PyTorchFileReader", _FILES),
    "load_pt2": Part("torch.export.pt2_archive._package:load_pt2", _FILES, ("f",)),
    "_dict_to_dataclass": Part("torch._export.serde.serialize:_dict_to_dataclass", _FILES, ("cls", "data")),
    "serde_schema": Part("torch._export.serde.schema:ExportedProgram", _FILES),
    "_jit_get_schemas_for_operator": Part("torch._C:_jit_get_schemas_for_operator", _FILES),
    # registries
    "_dispatch_get_all_op_names": Part("torch._C:_dispatch_get_all_op_names", _REGISTRY),
    "_InstanceNorm.forward": Part(
        "torch.nn.modules.instancenorm:_InstanceNorm.forward", "instance norms of channels that vary", ("self", "input")
    ),
    "_dispatch_has_kernel_for_dispatch_key": Part("torch._C:_dispatch_has_kernel_for_dispatch_key", _FUNCTIONS),
    "simple_registry": Part("torch._library.simple_registry:singleton", _FUNCTIONS),
    "ONNXRegistry": Part(f"{_EXPORTER}._registration:ONNXRegistry.from_torchlib", _REGISTRY),
    "create_onnx_friendly_decomposition_table": Part(
        f"{_EXPORTER}._decomp:create_onnx_friendly_decomposition_table", _REGISTRY, ("onnx_registered_ops",)
    ),
    "create_script_module": Part(
        "torch.jit._recursive:create_script_module",
        "the same names in each export of a module that is compiled",
        ("nn_module", "stubs_fn", "share_types"),
    ),
    "script_registry": Part(f"{_SCRIPT}.registration:registry", "symbolics that were registered with torch"),
}


@functools.cache
def part(name: str) -> Any:
    """Return a private part.

    Raises:
        MissingPartError: the installed release lacks it, or it has other parameters there. The export that is under way
            gets a finding.
    """
    wanted = PARTS[name]
    problem, value = _looked_up(wanted)
    if problem:
        error = MissingPartError(
            f"feature off: {wanted.feature}; {problem}",
            part=name,
            next_step="use a release of docs/releases.md; `torchport doctor` lists every feature that is off",
        )
        note(error.what)
        raise error
    return value


def has(*names: str) -> bool:
    """Check that all these parts are there. If not, the export that is under way gets a finding."""
    try:
        for name in names:
            part(name)
    except MissingPartError:
        return False
    return True


def _looked_up(wanted: Part) -> tuple[str, Any]:
    """Return why a part cannot be used, empty if it can, and the part."""
    release = f"{wanted.library} {_release(wanted.library)}"
    try:
        value = pkgutil.resolve_name(wanted.path)
    except (ImportError, AttributeError):
        return f"{release} has no {wanted.dotted}", None
    if wanted.parameters and _parameters(value)[: len(wanted.parameters)] != wanted.parameters:
        return f"{wanted.dotted} of {release} has other parameters than {', '.join(wanted.parameters)}", None
    if lacking := [a for a in wanted.attributes if not hasattr(_instance(value), a)]:
        return f"{wanted.dotted} of {release} has no {', '.join(lacking)}", None
    return "", value


def _parameters(function: Any) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return ()


@functools.cache
def _instance(kind: Any) -> Any:
    return kind()


def _release(library: str) -> str:
    return version(library).partition("+")[0]


@contextlib.contextmanager
def patched(name: str, replacement: Callable[[Any], Any]) -> Iterator[None]:
    """Replace a private part for a while.

    Args:
        name: the part.
        replacement: given the part, what to put in its place.

    Raises:
        MissingPartError: the part is not there.
    """
    part(name)  # the check: it is looked up again below, as somebody else may have replaced it meanwhile
    module, _, inside = PARTS[name].path.partition(":")
    *holders, attribute = inside.split(".")
    owner = functools.reduce(getattr, holders, importlib.import_module(module))
    original = getattr(owner, attribute)
    setattr(owner, attribute, replacement(original))
    try:
        yield original
    finally:
        setattr(owner, attribute, original)


def missing() -> tuple[MissingPart, ...]:
    """Return the parts that the installed releases lack, with the features that are off."""
    return _missing(tuple(PARTS.items()), tuple(_release(name) for name in ("torch", "onnxscript")))


@dataclasses.dataclass(frozen=True)
class MissingPart:
    """A part that cannot be used, with the reason and the feature that is off."""

    name: str
    feature: str
    reason: str


@functools.cache
def _missing(parts: tuple[tuple[str, Part], ...], releases: tuple[str, ...]) -> tuple[MissingPart, ...]:
    """The self-check of all parts, once for each set of releases."""
    problems = [(name, wanted.feature, _looked_up(wanted)[0]) for name, wanted in parts]
    return tuple(MissingPart(*problem) for problem in problems if problem[-1])


# Releases of torch.

TESTED = ("2.13.0", "2.14.1", "2.15.0")


def untested_release() -> str:
    """Return a sentence that says that the installed torch is newer than those that were tested; empty if it is not."""
    release = _release("torch")
    if _numbers(release)[:2] <= _numbers(TESTED[-1])[:2]:
        return ""
    return f"torch {release} is newer than the releases that torchport was tested with: {', '.join(TESTED)}"


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", release))


@functools.cache
def _untested_once() -> list[str]:
    """The sentence for the first export of a process, which takes it out of the list."""
    return [sentence for sentence in [untested_release()] if sentence]


# Findings for the export that is under way.

_findings: contextvars.ContextVar[list[Finding] | None] = contextvars.ContextVar("findings", default=None)


def note(message: str) -> None:
    """Give the export that is under way a finding, once."""
    findings = _findings.get()
    if findings is not None and Finding(message) not in findings:
        findings.append(Finding(message))


@contextlib.contextmanager
def noted() -> Iterator[list[Finding]]:
    """Collect the findings of an export: the features that are off for it, and once that torch is newer than tested."""
    findings = [Finding(_untested_once().pop())] if _untested_once() else []
    token = _findings.set(findings)
    try:
        yield findings
    finally:
        _findings.reset(token)
