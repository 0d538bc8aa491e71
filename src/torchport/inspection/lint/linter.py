"""List every fault of a model in one pass: tp.graph.lint."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import onnx
from onnx import ModelProto, TensorProto

from torchport.engines import registry
from torchport.errors import FileError, TorchportError
from torchport.files import reader
from torchport.files.onnx_files import ModelLike, as_model
from torchport.files.validation import check_functions
from torchport.inspection.lint import engine_support, names, operators
from torchport.inspection.lint.fault import SEVERITIES, Fault, read
from torchport.inspection.lint.names import unused_faults
from torchport.irtools.inference import drop_weights, without_weights
from torchport.irtools.serialization import proto_tensors, unread_tensors
from torchport.process import silence


def lint(model: ModelLike, engine: str | None = None) -> list[Fault]:
    """All faults of a model, errors first.

    Args:
        model: an ONNX file, or a model in memory. Weights are not read.
        engine: also look for operators that this engine has no kernel for.

    Raises:
        FileError: the file is missing, or nothing that can be read as ONNX.
        EngineMissingError: there is no such engine here.
    """
    if engine is not None:
        registry.check_engine(engine)
    with silence():
        return _lint(model, engine)


def _lint(model: ModelLike, engine: str | None) -> list[Fault]:
    proto, folder, found = _message(model)
    scopes = read(proto)
    found += _all(operators.data_faults, proto, folder)
    drop_weights(proto)
    found += (
        _all(operators.version_faults, proto, scopes)
        + _all(names.name_faults, scopes)
        + _all(unused_faults, proto, scopes)
    )
    found += _functions(proto)
    if not any(fault.rule in _HOPELESS for fault in found):
        found += _all(operators.node_faults, proto, scopes) + _all(operators.inference_faults, proto, scopes)
        found += [] if _errors(found) else _whole(proto)
        found += _all(engine_support.kernel_faults, proto, engine) if engine is not None and not _broken(found) else []
    return sorted(found, key=lambda fault: SEVERITIES.index(fault.severity))


_HOPELESS = ("functions", "no-graph")  # what could keep onnx busy for ever
_BROKEN = ("duplicate-name", "missing-name", "no-name", "cycle", "unreadable")


def _message(model: ModelLike) -> tuple[ModelProto, Path | None, list[Fault]]:
    """The model as a message, the folder its data is in, and what is wrong with the data of a model in memory."""
    if isinstance(model, (str, os.PathLike)):
        path = Path(model)
        return reader.parse(reader.read(path), path), path.parent.absolute(), []
    if isinstance(model, ModelProto):
        copy = ModelProto()
        copy.CopyFrom(model)  # its weights are dropped on the way
        return copy, None, []
    model = as_model(model)
    gone = [tensor for tensor in unread_tensors(model) if not os.path.isfile(tensor.path)]
    found = [
        Fault(
            "error",
            "missing-data",
            f"tensor '{tensor.name}': the data file '{tensor.path}' is missing",
            "load the model again from where its data file is",
            tensor=tensor.name or "",
        )
        for tensor in gone
    ]
    try:
        return without_weights(model), None, found
    except Exception as error:
        raise FileError(
            f"the model cannot be written as ONNX: {operators.clean(error)}", next_step="mend the model"
        ) from error


def _all(rule: Callable[..., Iterable[Fault]], *given: object) -> list[Fault]:
    """What a rule finds; one that fails on a file nobody thought of has found something too."""
    found: list[Fault] = []
    try:
        found.extend(rule(*given))
    except Exception as error:  # noqa: BLE001 - a hostile file must not end in a traceback
        what = f"the model cannot be read on: {type(error).__name__}, {operators.clean(error)}"
        found.append(Fault("error", "unreadable", what, "the file is broken; export the model again"))
    return found


def _functions(proto: ModelProto) -> list[Fault]:
    try:
        check_functions(proto, "")
    except TorchportError as error:
        return [Fault("error", "functions", error.what, error.next_step or "")]
    return []


def _whole(proto: ModelProto) -> list[Fault]:
    """What onnx's checker says of the model as a whole, where no part of it was at fault."""
    bare = ModelProto()
    bare.CopyFrom(proto)
    for tensor in proto_tensors(bare):
        if isinstance(tensor, TensorProto) and tensor.data_location == TensorProto.EXTERNAL:
            tensor.CopyFrom(operators.emptied(tensor))  # its data was looked at already, and may be large
    try:
        onnx.checker.check_model(bare)
    except Exception as error:  # noqa: BLE001 - whatever the checker says is a fault of the model
        return [Fault("error", "checker", f"the model: {operators.clean(error)}", "mend it as the message says")]
    return []


def _errors(found: list[Fault]) -> bool:
    return any(fault.severity == "error" for fault in found)


def _broken(found: list[Fault]) -> bool:
    return any(fault.rule in _BROKEN for fault in found)
