"""onnx's own reference evaluator: slow, plain, and written from the specification."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from torchport.engines import custom_operators
from torchport.errors import EngineError
from torchport.files import onnx_files
from torchport.irtools.types import tensor_infos
from torchport.tensors import Array


def open_session(source: Path | ir.Model, libraries: Sequence[str | os.PathLike[str]] = ()) -> ReferenceRunner:
    """Libraries are of no use here: PyTorch runs the operators that were defined in this process."""
    model = onnx_files.load(source) if isinstance(source, Path) else source
    own = custom_operators.python_classes(model)
    try:
        runner = ReferenceRunner(ReferenceEvaluator(ir.to_proto(model), new_ops=own), model)
        runner.in_python = tuple(f"{c.op_domain}::{c.__name__}" for c in own)  # type: ignore[attr-defined]
        return runner
    except Exception as error:
        raise EngineError(f"the reference evaluator refuses the model: {error}") from error


def has_kernels(model: onnx.ModelProto) -> bool:
    """Whether the evaluator has a class for every operator; it takes all types of one alike."""
    try:
        ReferenceEvaluator(model)
    except NotImplementedError:
        return False
    return True


class ReferenceRunner:
    in_python: tuple[str, ...] = ()

    def __init__(self, evaluator: Any, model: ir.Model) -> None:
        self._evaluator = evaluator
        self.inputs = tensor_infos(v for v in model.graph.inputs if str(v.name) not in model.graph.initializers)
        self.outputs = tensor_infos(model.graph.outputs)

    def run(self, feeds: Mapping[str, Array], only: Sequence[str] | None = None) -> Sequence[Array]:
        try:
            answers = self._evaluator.run(only, dict(feeds))
        except Exception as error:
            raise EngineError(f"the reference evaluator fails while running the model: {error}") from error
        return [_answer(a) for a in answers]


def _answer(answer: Any) -> Any:
    """A tensor, or a list of them: a sequence, or the one that an optional holds."""
    return list(map(np.asarray, answer)) if isinstance(answer, list) else np.asarray(answer)
