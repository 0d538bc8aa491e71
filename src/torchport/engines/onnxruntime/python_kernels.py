"""What a model's own operators need to run in ONNX Runtime: libraries, and PyTorch for nodes without a kernel.

PyTorch runs such nodes through onnxruntime-extensions, which is for checking and not for shipping.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from torchport.engines import custom_operators
from torchport.engines.custom_operators import OperatorCall, own_nodes
from torchport.engines.onnxruntime import kernel_libraries
from torchport.errors import EngineError
from torchport.irtools.names import name_of
from torchport.process import environment_kept

_DOMAIN = "ai.onnx.contrib"  # of onnxruntime-extensions
_REFERENCE = "take the reference engine: export --target reference, run --engine reference"
_numbers = itertools.count(1)
_kept: list[Any] = []  # what onnxruntime-extensions refers to while sessions live
_failures: list[tuple[str, BaseException]] = []  # of calls in Python: an exception in there would end the process


@dataclasses.dataclass(frozen=True)
class Needs:
    """What a model's own operators need: libraries to load, and nodes for PyTorch to run."""

    libraries: tuple[Path, ...]
    in_python: tuple[ir.Node, ...]

    @property
    def names_in_python(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(f"{n.domain}::{n.op_type}" for n in self.in_python))


def needs(model: ir.Model, given: Sequence[str | os.PathLike[str]]) -> Needs:
    """Return what the model's own operators need.

    Raises:
        EngineError: nothing runs one of them, or a library cannot be loaded.
    """
    named = [kernel_libraries.check(path) for path in given]
    with_kernels: list[ir.Node] = []
    in_python: list[ir.Node] = []
    for node in own_nodes(model):
        if custom_operators.has_kernel(node):
            with_kernels.append(node)
        elif node.op_identifier() in model.functions or named:
            continue  # its body runs; or a library that was named has it, which ONNX Runtime finds out
        elif custom_operators.call_of(node) is not None:
            in_python.append(node)
        else:
            raise custom_operators.no_kernel(model, node)
    own = [kernel_libraries.check(path) for path in custom_operators.kernel_libraries_of(with_kernels)]
    different = {custom_operators.digest(path): path for path in reversed([*named, *own])}
    return Needs(tuple(reversed(different.values())), tuple(in_python))


def with_python_kernels(model: ir.Model, nodes: Sequence[ir.Node]) -> tuple[ir.Model, str]:
    """Return a copy of the model in which PyTorch runs these nodes, and the library that makes it possible."""
    try:
        with environment_kept():  # it sets protobuf in Python, for every process started later
            from onnxruntime_extensions import (  # type: ignore[import-untyped,unused-ignore]
                PyCustomOpDef,
                get_library_path,
                onnx_op,
            )
    except ImportError as error:
        names = ", ".join(sorted({f"{n.domain}::{n.op_type}" for n in nodes}))
        raise EngineError(
            f"no kernel for {names}, and onnxruntime-extensions, which runs it in Python, does not load: {error}",
            next_step=f"pip install onnxruntime-extensions; or {_REFERENCE}",
        ) from error
    wanted = {id(n) for n in nodes}
    originals = [n for n in ir.traversal.RecursiveGraphIterator(model.graph) if id(n) in wanted]
    kinds = {v: getattr(PyCustomOpDef, f"dt_{k}") for k, v in _KINDS.items() if hasattr(PyCustomOpDef, f"dt_{k}")}
    changed: dict[ir.Node, tuple[str, str]] = {}
    try:
        for node in originals:
            name = f"torchport_{next(_numbers)}"
            register = onnx_op(
                op_type=name,
                inputs=[_kind(v.dtype, kinds, node) for v in node.inputs if v is not None],
                outputs=[_kind(_type_of_output(v), kinds, node) for v in node.outputs],
            )
            _kept.append(register(_kernel(node)))
            changed[node] = (node.domain, node.op_type)
            node.domain, node.op_type = _DOMAIN, name
        copy = model.clone()
    finally:
        for node, (domain, op_type) in changed.items():
            node.domain, node.op_type = domain, op_type
    _drop_absent_inputs(copy)
    copy.opset_imports[_DOMAIN] = 1
    return copy, str(get_library_path())


def _drop_absent_inputs(model: ir.Model) -> None:
    """Leave the nodes in Python with the inputs that are there, and no attributes: the call has those."""
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if node.domain == _DOMAIN:
            present = [v for v in node.inputs if v is not None]
            node.resize_inputs(len(present))
            for place, value in enumerate(present):
                node.replace_input_with(place, value)
            node.attributes.clear()


def _kernel(node: ir.Node) -> Any:
    call = custom_operators.call_of(node)
    assert call is not None
    present = [n for n, v in enumerate(node.inputs) if v is not None]
    count, wanted = len(node.inputs), [_type_of_output(v).numpy() for v in node.outputs]
    unknown = [v.dtype is None for v in node.outputs]

    def run(*arrays: Any) -> Any:
        inputs: list[Any] = [None] * count
        for place, array in zip(present, arrays, strict=True):
            inputs[place] = array
        try:
            outputs = _outputs(call, inputs, wanted, unknown)
        except BaseException as error:  # noqa: BLE001 - raised again by `raise_failure`, outside of the engine
            _failures.append((call.name, error))
            outputs = [np.zeros(0, dtype) for dtype in wanted]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    return run


def _outputs(call: OperatorCall, inputs: list[Any], wanted: list[Any], unknown: list[bool]) -> list[Any]:
    """Return what the call gives, in the types that the model has."""
    outputs = call.run(*inputs)
    if len(outputs) == len(wanted):
        outputs = [o.astype(w) if u else o for o, w, u in zip(outputs, wanted, unknown, strict=True)]
    if [o.dtype for o in outputs] != wanted:
        given = ", ".join(str(o.dtype) for o in outputs)
        raise EngineError(f"it gives {given}; the model has {', '.join(map(str, wanted))}")
    return outputs


def raise_failure() -> None:
    """Raise the first error of a call in Python since the last time."""
    if not _failures:
        return
    name, error = _failures[0]
    _failures.clear()
    if not isinstance(error, Exception):
        raise error
    raise EngineError(f"PyTorch fails while running {name}: {str(error).strip() or type(error).__name__}") from error


# onnxruntime-extensions' names of types; float16 is among them, but ends the process
_KINDS = {
    "float": ir.DataType.FLOAT,
    "double": ir.DataType.DOUBLE,
    "bool": ir.DataType.BOOL,
    **{f"{u}int{n}": getattr(ir.DataType, f"{u}int{n}".upper()) for u in ("", "u") for n in (8, 16, 32, 64)},
}


def _type_of_output(value: ir.Value) -> ir.DataType:
    """Return the type; where it is not known no node uses the output, and any type will do."""
    return value.dtype if value.dtype is not None else ir.DataType.FLOAT


def _kind(dtype: ir.DataType | None, kinds: dict[ir.DataType, Any], node: ir.Node) -> Any:
    if dtype not in kinds:
        raise EngineError(
            f"{node.domain}::{node.op_type} has no kernel, and a tensor of type {dtype} cannot be given to Python",
            node=name_of(node),
            next_step=f"give it a kernel in C++ (torchport ops build) or a lowering; or {_REFERENCE}",
        )
    return kinds[dtype]
