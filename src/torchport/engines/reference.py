"""onnx's own reference evaluator: slow, plain, and written from the specification."""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from torchport.engines import custom_operators
from torchport.engines.protocol import Capabilities, Engine, OpenOptions, Runner
from torchport.errors import EngineError
from torchport.files import onnx_files
from torchport.irtools.metadata import read_bounds
from torchport.irtools.types import plain, tensor_infos
from torchport.tensors import Array


class ReferenceEngine(Engine):
    def open(self, model: Path | ir.Model, options: OpenOptions) -> ReferenceRunner:
        """Open a model. Libraries are not used: PyTorch runs the operators that were defined in this process."""
        loaded = onnx_files.load(model) if isinstance(model, Path) else model
        own = _operator_classes(loaded)
        try:
            evaluator = ReferenceEvaluator(ir.to_proto(loaded), new_ops=list(own.values()))
        except Exception as error:
            raise EngineError(f"the reference evaluator refuses the model: {error}") from error
        return ReferenceRunner(evaluator, loaded, in_python=tuple(own))

    def capabilities(self) -> Capabilities:
        return _capabilities()


@functools.cache
def _capabilities() -> Capabilities:
    dtypes = [d for d in ir.DataType if d not in (ir.DataType.UNDEFINED, ir.DataType.STRING)]
    newest = onnx.defs.onnx_opset_version()
    return Capabilities(onnx.__version__, ("cpu",), (1, newest), tuple(map(plain, dtypes)), _has_operators)


def _has_operators(model: onnx.ModelProto) -> bool:
    """Check that the evaluator has a class for every operator; it takes all types of one alike."""
    try:
        ReferenceEvaluator(model)
    except NotImplementedError:
        return False
    return True


class ReferenceRunner(Runner):
    def __init__(self, evaluator: Any, model: ir.Model, in_python: tuple[str, ...] = ()) -> None:
        self._evaluator = evaluator
        self._lock = threading.Lock()  # the evaluator's operators keep state while they run
        self.inputs = tensor_infos(v for v in model.graph.inputs if str(v.name) not in model.graph.initializers)
        self.outputs = tensor_infos(model.graph.outputs)
        self.bounds = read_bounds(model.metadata_props)
        self.in_python = in_python

    def run(self, feeds: Mapping[str, Array], only: Sequence[str] | None = None) -> Sequence[Array]:
        try:
            with self._lock:
                outputs = self._evaluator.run(only, dict(feeds))
        except Exception as error:
            raise EngineError(f"the reference evaluator fails while running the model: {error}") from error
        return [_arrays(output) for output in outputs]


def _arrays(output: Any) -> Any:
    """Return a tensor, or a list of them: a sequence, or the one that an optional holds."""
    return list(map(np.asarray, output)) if isinstance(output, list) else np.asarray(output)


def _operator_classes(model: ir.Model) -> dict[str, type]:
    """Return a class for each operator that only PyTorch runs, by the operator's name."""
    made: dict[str, type] = {}
    for node in custom_operators.own_nodes(model):
        name = f"{node.domain}::{node.op_type}"
        has_body = node.op_identifier() in model.functions
        if name not in made and not has_body and custom_operators.call_of(node) is not None:
            made[name] = _operator_class(node.domain, node.op_type)
    return made


def _operator_class(domain: str, op_type: str) -> type:
    def run(self: Any, *inputs: Any, **_attributes: Any) -> tuple[Any, ...]:
        call = custom_operators.call_of(ir.serde.deserialize_node(self.onnx_node))
        assert call is not None
        return tuple(call.run(*inputs))

    return type(op_type, (OpRun,), {"op_domain": domain, "_run": run})
