"""ONNX Runtime on the CPU."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from torchport.engines.weights import LARGE, without_weights
from torchport.errors import EngineError
from torchport.graph import files
from torchport.records import TensorInfo

Array = np.ndarray[Any, Any]

_DTYPES = {"float": "float32", "double": "float64"}
_LENT = {"bfloat16": (onnx.TensorProto.BFLOAT16, np.uint16, ml_dtypes.bfloat16)}
_QUIET = 4  # its messages come back as exceptions; printing them too helps nobody


def open_session(source: Path | ir.Model) -> OrtRunner:
    """Open a file or a model in memory. Large weights in memory are shared with it, not copied."""
    options = ort.SessionOptions()
    options.log_severity_level = _QUIET
    if isinstance(source, Path):
        model = files.load(source)  # refuses hostile files before the engine sees them
        return OrtRunner(_open(str(source), options), None, model)
    if files.weight_bytes(source) < LARGE:
        return OrtRunner(_open(files.to_bytes(source), options), None, source)
    proto, arrays = without_weights(source)
    values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()}
    for name, value in values.items():
        options.add_initializer(name, value)
    # Both would make copies of the weights, which is what this way is to avoid.
    options.add_session_config_entry("session.disable_prepacking", "1")
    session = _open(proto, options, disabled_optimizers=["ConstantFolding"])
    return OrtRunner(session, (values, arrays), source)


def _open(source: Any, options: ort.SessionOptions, **more: Any) -> ort.InferenceSession:
    try:
        return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"], **more)
    except Exception as error:
        raise _engine_error("ONNX Runtime refuses the model", error) from error


class OrtRunner:
    """Runs an ONNX Runtime session, bfloat16 included, which numpy has no type for."""

    def __init__(self, session: ort.InferenceSession, keep_alive: object, model: ir.Model) -> None:
        self._session = session
        self._keep_alive = keep_alive
        declared = {str(v.name): v for v in model.graph.inputs}
        self.inputs = tuple(_info(a, declared.get(a.name)) for a in session.get_inputs())
        self.outputs = tuple(_info(a, None) for a in session.get_outputs())
        self._lent = any(i.dtype in _LENT for i in (*self.inputs, *self.outputs))
        self._options = ort.RunOptions()
        self._options.log_severity_level = _QUIET

    def run(self, feeds: Mapping[str, Array]) -> Sequence[Array]:
        try:
            if self._lent:
                return self._run_values(feeds)
            return self._session.run(None, dict(feeds), self._options)
        except Exception as error:
            raise _engine_error("ONNX Runtime fails while running the model", error) from error

    def _run_values(self, feeds: Mapping[str, Array]) -> Sequence[Array]:
        names = [o.name for o in self.outputs]
        outputs = self._session.run_with_ort_values(
            names, {name: _to_value(array) for name, array in feeds.items()}, self._options
        )
        return [_from_value(value, info.dtype) for value, info in zip(outputs, self.outputs, strict=True)]


def _to_value(array: Array) -> ort.OrtValue:
    lent = _LENT.get(array.dtype.name)
    if lent is None:
        return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))
    kind, bits, _ = lent
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(np.ascontiguousarray(array).view(bits), kind)


def _from_value(value: ort.OrtValue, dtype: str) -> Array:
    if dtype not in _LENT:
        return value.numpy()
    _, bits, lent = _LENT[dtype]
    pointer = np.ctypeslib.as_array(
        (np.ctypeslib.as_ctypes_type(bits) * int(np.prod(value.shape()))).from_address(value.data_ptr())
    )
    return pointer.reshape(value.shape()).copy().view(lent)


def _info(argument: Any, declared: ir.Value | None) -> TensorInfo:
    name = argument.type.removeprefix("tensor(").removesuffix(")")
    shape: tuple[int | str | None, ...] | None = tuple(argument.shape)
    if declared is not None and declared.shape is None:
        shape = None  # ONNX Runtime shows an unknown rank as rank 0
    return TensorInfo(argument.name, _DTYPES.get(name, name), shape)


def _engine_error(what: str, error: Exception) -> EngineError:
    """ONNX Runtime's message, without its code paths; the node it names goes into `where`."""
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", str(error)).strip()
    node = re.search(r"Name:'([^']*)'", text) or re.search(r"[Nn]ode:? ?\(?([\w./:]+)\)?", text)
    reason = re.split(r"Status Message: ", text)[-1]
    reason = re.sub(r"/\S+\.(?:cc|h):\d+ \S.*?\) ", "", reason)
    return EngineError(
        f"{what}: {reason.splitlines()[0][:300] if reason else text}",
        where=f"node '{node[1]}'" if node else None,
    )
