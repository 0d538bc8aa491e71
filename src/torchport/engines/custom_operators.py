"""Nodes of domains that ONNX Runtime does not have: who runs them.

A kernel does, from a library that was named or from an operator defined in this process; else the node's body, which
needs nobody; else PyTorch itself, through onnxruntime-extensions, which is for checking and not for shipping.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from torchport.engines.onnxruntime import kernel_libraries
from torchport.errors import EngineError
from torchport.irtools import types
from torchport.irtools.metadata import OPERATORS
from torchport.irtools.traversal import all_nodes
from torchport.operators import definition, pytorch_calls

_numbers = itertools.count(1)
_KEPT: list[Any] = []  # what onnxruntime-extensions refers to while sessions live
_failures: list[tuple[str, BaseException]] = []  # of calls in Python: an exception in there would end the process


@dataclasses.dataclass(frozen=True)
class Needs:
    """What a model's own operators need: libraries to load, and nodes for PyTorch to run."""

    libraries: tuple[Path, ...]
    in_python: tuple[ir.Node, ...]

    @property
    def names_in_python(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(f"{n.domain}::{n.op_type}" for n in self.in_python))


def own_nodes(model: ir.Model) -> list[ir.Node]:
    """Nodes of domains that are neither ONNX's nor the engine's, branches and bodies included."""
    return [node for node in all_nodes(model) if types.is_custom(node)]


def needs(model: ir.Model, given: Sequence[str | os.PathLike[str]]) -> Needs:
    """Who runs the model's own operators. Raises EngineError that names what is missing."""
    named = [kernel_libraries.check(path) for path in given]
    with_kernels: dict[str, definition.Operator] = {}
    in_python: list[ir.Node] = []
    missing: list[ir.Node] = []
    for node in own_nodes(model):
        own = definition.by_node(node.domain, node.op_type)
        if own is not None and own.has_kernel:
            with_kernels[own.name] = own
        elif node.op_identifier() in model.functions or named:
            continue  # its body runs; or a library that was named has it, ONNX Runtime will tell
        elif pytorch_calls.of(node) is not None:
            in_python.append(node)
        else:
            missing.append(node)
    if missing:
        raise no_kernel(model, missing[0])
    paths = [*named, *(kernel_libraries.check(path) for path in definition.libraries(list(with_kernels.values())))]
    different = {kernel_libraries.digest(path): path for path in reversed(paths)}
    return Needs(tuple(reversed(different.values())), tuple(in_python))


def with_bodies_only(model: ir.Model) -> ir.Model | None:
    """A copy in which nodes that have both a kernel and a body are written out; None if there are none."""
    both = {n.op_identifier() for n in own_nodes(model) if _has_kernel(n) and n.op_identifier() in model.functions}
    if not both:
        return None
    copy = model.clone()
    InlinePass(criteria=lambda function: function.identifier() in both)(copy)
    return copy


def _has_kernel(node: ir.Node) -> bool:
    own = definition.by_node(node.domain, node.op_type)
    return own is not None and own.has_kernel


def described(model: ir.Model, given: Sequence[str | os.PathLike[str]]) -> list[dict[str, Any]]:
    """The model's own operators, each with the library that has its kernel, for whoever opens the model later."""
    found: dict[str, dict[str, Any]] = {}
    for node in own_nodes(model):
        own = definition.by_node(node.domain, node.op_type)
        library = own.library() if own is not None else None
        entry: dict[str, Any] = {"name": f"{node.domain}::{node.op_type}"}
        if library is not None:
            entry |= {"library": library.name, "sha256": kernel_libraries.digest(library)}
        elif given and own is None:
            entry |= {"library": " or ".join(Path(p).name for p in given)}
        if node.op_identifier() in model.functions:
            entry["body"] = True
        found.setdefault(entry["name"], entry)
    return list(found.values())


def no_kernel(model: ir.Model, node: ir.Node, *, looked_in: Sequence[Path] = ()) -> EngineError:
    name = f"{node.domain}::{node.op_type}"
    known = {e["name"]: e for e in json.loads(model.metadata_props.get(OPERATORS, "[]"))}
    library = known.get(name, {}).get("library")
    kernel = f"the model was saved with its kernel in {library}" if library else "the model names no library for it"
    example = library or f"lib{node.op_type.lower()}.so"
    if looked_in:
        kernel = f"none of {', '.join(p.name for p in looked_in)} has it"
    return EngineError(
        f"nothing here runs the operator {name} (domain '{node.domain}'): {kernel}",
        where=f"node '{node.name}'",
        next_step=f"give the library: tp.session(model, libraries=['{example}']) or --library; or import the file "
        f"that defines {name} with @tp.operator",
    )


@contextlib.contextmanager
def _environment_kept() -> Iterator[None]:
    """onnxruntime-extensions switches protobuf to its implementation in Python, for every process started later."""
    before = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def with_python_kernels(model: ir.Model, nodes: Sequence[ir.Node]) -> tuple[ir.Model, str]:
    """A copy of the model in which PyTorch runs these nodes, and the library that makes it possible."""
    try:
        with _environment_kept():
            from onnxruntime_extensions import (  # type: ignore[import-untyped,unused-ignore]
                PyCustomOpDef,
                get_library_path,
                onnx_op,
            )
    except ImportError as error:
        names = ", ".join(sorted({f"{n.domain}::{n.op_type}" for n in nodes}))
        raise EngineError(
            f"no kernel for {names}, and nothing to run it in Python with",
            next_step='pip install "torchport[python-kernels]", or engine="reference"',
        ) from error
    wanted = {id(n) for n in nodes}
    originals = [n for n in model.graph.all_nodes() if id(n) in wanted]
    kinds = {v: getattr(PyCustomOpDef, f"dt_{k}") for k, v in _KINDS.items() if hasattr(PyCustomOpDef, f"dt_{k}")}
    changed: dict[ir.Node, tuple[str, str, list[Any]]] = {}
    try:
        for node in originals:
            call = pytorch_calls.of(node)
            assert call is not None
            there = [n for n, v in enumerate(node.inputs) if v is not None]
            name = f"torchport_{next(_numbers)}"
            function = _kernel(call, there, node)
            register = onnx_op(
                op_type=name,
                inputs=[_kind(v.dtype, kinds, node) for v in node.inputs if v is not None],
                outputs=[_kind(_type_of_output(v), kinds, node) for v in node.outputs],
            )
            _KEPT.append(register(function))
            changed[node] = (node.domain, node.op_type, list(node.inputs))
            node.domain, node.op_type = "ai.onnx.contrib", name
        copy = model.clone()
    finally:
        for node, (domain, kind, _) in changed.items():
            node.domain, node.op_type = domain, kind
    for node in copy.graph.all_nodes():
        if node.domain == "ai.onnx.contrib":
            there_now = [v for v in node.inputs if v is not None]
            node.resize_inputs(len(there_now))
            for place, value in enumerate(there_now):
                node.replace_input_with(place, value)
            node.attributes.clear()
    copy.opset_imports["ai.onnx.contrib"] = 1
    return copy, str(get_library_path())


def _kernel(call: pytorch_calls.Call, there: list[int], node: ir.Node) -> Any:
    count, wanted = len(node.inputs), [_type_of_output(v).numpy() for v in node.outputs]
    unknown = [v.dtype is None for v in node.outputs]

    def run(*arrays: Any) -> Any:
        inputs: list[Any] = [None] * count
        for place, array in zip(there, arrays, strict=True):
            inputs[place] = array
        try:
            outputs = call.run(*inputs)
            if len(outputs) == len(wanted):
                outputs = [o.astype(w) if u else o for o, w, u in zip(outputs, wanted, unknown, strict=True)]
            if [o.dtype for o in outputs] != wanted:
                given = ", ".join(str(o.dtype) for o in outputs)
                raise EngineError(f"it gives {given}; the model has {', '.join(map(str, wanted))}")
        except BaseException as error:  # noqa: BLE001 - raised again by `raise_failure`, outside of the engine
            _failures.append((call.name, error))
            outputs = [np.zeros(0, dtype) for dtype in wanted]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    return run


def raise_failure() -> None:
    """Raise what happened in a call of `with_python_kernels` since the last time."""
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
    """Where the type is not known nobody uses the output: any will do."""
    return value.dtype if value.dtype is not None else ir.DataType.FLOAT


def _kind(dtype: ir.DataType | None, kinds: dict[ir.DataType, Any], node: ir.Node) -> Any:
    if dtype not in kinds:
        raise EngineError(
            f"{node.domain}::{node.op_type} has no kernel, and a tensor of type {dtype} cannot be given to Python",
            where=f"node '{node.name}'",
            next_step='give it a kernel in C++, or a lowering; or take engine="reference"',
        )
    return kinds[dtype]


def python_classes(model: ir.Model) -> list[type]:
    """The same for onnx's reference evaluator: a class for each operator."""
    from onnx.reference.op_run import OpRun

    made: dict[tuple[str, str], type] = {}
    for node in own_nodes(model):
        key = (node.domain, node.op_type)
        if key in made or node.op_identifier() in model.functions or pytorch_calls.of(node) is None:
            continue
        made[key] = _class(OpRun, *key)
    return list(made.values())


def _class(base: Any, domain: str, op_type: str) -> type:
    def run(self: Any, *inputs: Any, **_attributes: Any) -> tuple[Any, ...]:
        call = pytorch_calls.of(ir.serde.deserialize_node(self.onnx_node))
        assert call is not None
        return tuple(call.run(*inputs))

    return type(op_type, (base,), {"op_domain": domain, "_run": run})
