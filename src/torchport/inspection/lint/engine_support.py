"""Operators that a chosen engine cannot run, in the types they are used with, as the engine's capabilities say."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
import onnx_ir as ir
from onnx import ModelProto

from torchport.engines.protocol import OpenOptions, Use, identity_model, one_node, use_of
from torchport.engines.registry import find_engine
from torchport.errors import EngineError
from torchport.inspection.lint.fault import Fault
from torchport.irtools import metadata
from torchport.irtools.inference import fill_in, infer_shapes
from torchport.irtools.names import name_of, where as title
from torchport.irtools.traversal import all_nodes, subgraphs
from torchport.irtools.types import dtype_name, is_custom, operator_name


def kernel_faults(proto: ModelProto, engine: str) -> Iterator[Fault]:
    """Find the nodes that an engine cannot run.

    Args:
        proto: a well-formed model without its large weights.
        engine: the engine's name.
    """
    too_new = _too_new(proto, engine)
    if too_new is not None:
        yield too_new
        return
    runs = find_engine(engine).capabilities().runs
    if runs is None:
        yield Fault(
            "note", "no-kernel", f"the engine '{engine}' does not say which kernels it has", "try `torchport run`"
        )
        return
    model = ir.from_proto(_typed(proto))
    fill_in(model.graph, model.opset_imports.get("", 1))
    answers: dict[Use, bool] = {}
    for node in all_nodes(model):
        if is_custom(node):
            yield from _own(model, node)
            continue
        use = use_of(node)
        if subgraphs(node) or node.op_identifier() in model.functions or not _plain(node):
            continue  # what is inside is looked at by itself
        if use not in answers:
            answers[use] = runs(one_node(node, use, model))
        if not answers[use]:
            yield _missing(node, engine)


def _too_new(proto: ModelProto, engine: str) -> Fault | None:
    """Find out if the engine takes the IR version and opsets at all, with a model of them that does nothing."""
    imports = {opset.domain: opset.version for opset in proto.opset_import}
    probe = identity_model(onnx.TensorProto.FLOAT, {"": 13, **imports}, proto.ir_version)
    try:
        find_engine(engine).open(ir.from_proto(probe), OpenOptions())
    except EngineError as error:
        versions = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in imports.items())
        what = f"{engine} does not take a model of IR version {proto.ir_version} and opset {versions}"
        reason = error.what.partition(": ")[2]
        advice = "upgrade the engine, or save the model with an older opset and IR version"
        return Fault("error", "too-new", f"{what}: {reason[:120]}" if reason else what, advice)
    return None


def _plain(node: ir.Node) -> bool:
    """Check that its types are known, and are those of tensors: a model of one node has no others."""
    values = [value for value in (*node.inputs, *node.outputs) if value is not None and value.name]
    tensors = all(isinstance(value.type, ir.TensorType | None) for value in values)
    return tensors and all(value.dtype is not None for value in values)


def _typed(proto: ModelProto) -> ModelProto:
    try:
        return infer_shapes(proto)
    except Exception:  # noqa: BLE001 - said by another rule
        return proto


def _missing(node: ir.Node, engine: str) -> Fault:
    types = ", ".join(dtype_name(v.dtype) for v in node.inputs if v is not None)
    return Fault(
        "error",
        "no-kernel",
        f"{engine} has no kernel of {operator_name(node)} for ({types}), which {title(node)} wants",
        "cast to a type it has (`torchport ops show` lists them), or take another engine",
        node=name_of(node),
        source=node.metadata_props.get(metadata.SOURCE, ""),
    )


def _own(model: ir.Model, node: ir.Node) -> Iterator[Fault]:
    if node.op_identifier() in model.functions:
        return
    name = operator_name(node)
    library = metadata.operator_libraries(model).get(name)
    where = f"its kernel is in {library}" if library else "the model names no library for it"
    yield Fault(
        "warning" if library else "error",
        "own-operator",
        f"{title(node)} is {name}, which no engine brings: {where}",
        f"open it with its library: torchport run --library {library or 'LIBRARY'}",
        node=name_of(node),
        source=node.metadata_props.get(metadata.SOURCE, ""),
    )
