"""Operators and C++ classes that a model file may name, for TorchScript and for `.pt2` alike.

A model file chooses which operators run and with which arguments, so the rule is an allow list. What is not
listed is refused, and `--trust` is the way out:

- Operators of PyTorch are allowed by namespace (`_NAMESPACES`). Within these, an operator that takes a text
  called after a file, a folder or an address is refused by its own schema, and `_REFUSED` names the rest that
  reaches out of the process. Of `prim` and `profiler`, which hold the insides of the interpreter, only the
  operators listed by name are allowed.
- Operators of other libraries are refused, even if a package registered them in this process: nothing is
  known of what they do with the arguments the file gives them. Exempt are those defined with `tp.operator`,
  which the user named with `--library` or imported, and only if they take nothing but tensors and numbers.
- C++ classes restore themselves from the file, so only the packed weights of PyTorch's own quantized and
  mobile layers are allowed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from torchport.torch_compat import saved_files


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NAMESPACES = _words(
    """aten prims quantized _quantized quantized_decomposed quantization sparse mkldnn mkldnn_prepacked mkl onednn
    prepacked rngprims torchvision torchport"""
)

_REFUSED = _words(
    """aten::save aten::from_file aten::load
    aten::owner aten::owner_name aten::to_here aten::local_value aten::confirmed_by_owner aten::is_owner
    mkldnn::data_ptr"""
)

# of the interpreter's own operators those that torch.jit.save writes by name
_INTERPRETER = frozenset(
    f"prim::{name}"
    for name in _words(
        """AutogradAdd AutogradAllNonZero AutogradAllZero AutogradAnyNonZero AutogradZero BroadcastMKLDNNTensors
        BroadcastSizes ChunkSizes ConstantChunk ConstantMKLDNNTensor EnumName EnumValue FusedConcat IfThenElse
        MKLDNNClamp MKLDNNClamp_ MKLDNNHardSigmoid MKLDNNHardSigmoid_ MKLDNNHardSwish MKLDNNHardSwish_
        MKLDNNHardTanh MKLDNNHardTanh_ MKLDNNLayerNorm MKLDNNLayerNorm_ MKLDNNScalarMul MKLDNNScalarMul_
        MMBatchSide MMTreeReduce ModuleContainerIndex NumToTensor Print RaiseException ReductionSizes StringIndex
        TupleIndex TupleUnpack Uninitialized VarConcat VarStack abs awaitable_nowait awaitable_wait data device
        dtype grad id index is_cpu is_cuda is_ipu is_maia is_meta is_mkldnn is_mps is_mtia is_nested is_quantized
        is_sparse is_sparse_csr is_vulkan is_xla is_xpu itemsize layout max min mkldnn_convolution name nbytes
        rangelist requires_grad tolist type unchecked_cast unchecked_unwrap_optional"""
    )
) | _words(
    """profiler::_record_function_enter profiler::_record_function_enter_new profiler::_record_function_exit
    profiler::_call_end_callbacks_on_jit_fut"""
)

# TorchScript's own library: functions written in TorchScript inside torch, which have no schema to look up
_WRITTEN_IN_TORCHSCRIPT = frozenset(f"aten::{name}" for name in _words("ndim T H shape type list_with_default"))

_HIGHER_ORDER = _words(
    """cond while_loop while_loop_stack_output scan associative_scan map map_impl foreach_map out_dtype
    wrap wrap_with_set_grad_enabled wrap_with_autocast wrap_activation_checkpoint tag_activation_checkpoint
    invoke_subgraph strict_mode hints_wrapper auto_functionalized auto_functionalized_v2 flex_attention
    autograd_function_apply run_const_graph"""
)

_CLASSES = frozenset(
    f"__torch__.torch.classes.{name}"
    for name in _words(
        """quantized.LinearPackedParamsBase quantized.Conv2dPackedParamsBase quantized.Conv3dPackedParamsBase
        quantized.EmbeddingPackedParamsBase rnn.CellParamsBase sparse.LinearPackedParamsBase mkldnn.ConvOpContext
        xnnpack.LinearOpContext xnnpack.Conv2dOpContext xnnpack.TransposeConv2dOpContext
        profiler._RecordFunction"""
    )
)

# what the classes above can be asked for
_METHODS = _words(
    """unpack weight bias stride padding output_padding dilation groups transpose bit_rate version
    __getstate__ __setstate__"""
)

_OPERATOR = re.compile(r"\w+::\w+", re.ASCII)
_PLACE = re.compile(
    r"file|(?:^|_)(?:fname|path|dir|directory|folder|url|uri|host|port|addr|address|socket|command|library)(?:$|_)",
    re.IGNORECASE,
)
_TEXT = re.compile(r"\b(?:str|Any|AnyType)\b")
_NUMBERS = _words("Tensor Optional List Tuple int float bool complex number Device Layout MemoryFormat SymInt")


def may_use_class(name: str) -> bool:
    """Check that objects of the C++ class, named in full, restore nothing but packed weights."""
    return name in _CLASSES


def is_class_method(name: str) -> bool:
    """Check that the name is that of a method of one of the allowed C++ classes."""
    return name in _METHODS


def is_script_operator(name: str) -> bool:
    """Check that TorchScript can call the operator, such as `aten::save`, whether a file may or not."""
    return bool(_script_schemas(name))


def script_operator_problem(name: str) -> str:
    """Return why TorchScript may not call the operator, such as `aten::save`; empty if it may."""
    if name in _WRITTEN_IN_TORCHSCRIPT:
        return ""
    return _problem(name, _script_schemas(name))


def _script_schemas(name: str) -> Sequence[Any]:
    if not _OPERATOR.fullmatch(name):
        return ()
    schemas: Sequence[Any] = saved_files.script_schemas(name)
    return schemas


def program_operator_problem(operator: Any) -> str:
    """Return why a saved program may not call the operator, as found in `torch.ops`; empty if it may."""
    from torchport.torch_compat import registries

    if saved_files.is_higher_order(operator):
        known = operator.name() in _HIGHER_ORDER
        return "" if known else "is not known to run only what is in the program"
    if not registries.is_overload(operator):
        return "is no operator"
    return _problem(str(registries.schema(operator).name), [registries.schema(operator)])


def _problem(name: str, schemas: Sequence[Any]) -> str:
    namespace = name.partition("::")[0]
    if not schemas:
        return "is no operator of this PyTorch"
    if name in _REFUSED or any(map(_names_a_place, schemas)):
        return "reads or writes files, or reaches other processes"
    if name in _INTERPRETER or namespace in _NAMESPACES:
        return ""
    if _is_the_users(name) and all(map(_takes_only_numbers, schemas)):
        return ""
    return "is not known to leave files, processes and the network alone"


def _names_a_place(schema: Any) -> bool:
    return any(_TEXT.search(str(argument.type)) and _PLACE.search(argument.name) for argument in schema.arguments)


def _takes_only_numbers(schema: Any) -> bool:
    return all(_NUMBERS.issuperset(re.findall(r"\w+", str(argument.type))) for argument in schema.arguments)


def _is_the_users(name: str) -> bool:
    from torchport.operators.definition import defined

    return name in defined()
