"""onnx's own reference evaluator: slow, plain, and written from the specification."""

from __future__ import annotations

import functools
import threading
import traceback
import warnings
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
from torchport.errors import EngineError, first_line
from torchport.files import onnx_files
from torchport.irtools.metadata import read_bounds
from torchport.irtools.serialization import settled, to_proto
from torchport.irtools.traversal import opset_of
from torchport.irtools.types import plain, tensor_infos
from torchport.tensors import Array


class ReferenceEngine(Engine):
    def open(self, model: Path | ir.Model, options: OpenOptions) -> ReferenceRunner:
        """Open a model. Libraries are not used: PyTorch runs the operators that were defined in this process."""
        loaded = onnx_files.load(model) if isinstance(model, Path) else model
        own = _operator_classes(loaded)
        for node in custom_operators.own_nodes(loaded):
            if f"{node.domain}::{node.op_type}" not in own and node.op_identifier() not in loaded.functions:
                raise custom_operators.no_kernel(loaded, node, loads_libraries=False)
        try:
            # with its weights inside: the evaluator would look for their file in the current folder
            proto = to_proto(loaded, place=settled, nested=settled)
            evaluator = ReferenceEvaluator(proto, new_ops=[*own.values(), *_repaired(loaded)])
        except Exception as error:
            raise EngineError(
                f"the reference evaluator refuses the model: {error}",
                next_step="name another engine with --engine (engine=)",
            ) from error
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
            with self._lock, warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")  # numpy's, of means of nothing and the like
                outputs = self._evaluator.run(only, dict(feeds))
        except Exception as error:
            name, where = _node_at_fault(error)
            what = f"the reference evaluator fails while running the model: {first_line(error)}"
            raise EngineError(what, where=where, node=name) from error
        return [_arrays(output) for output in outputs]


def _node_at_fault(error: BaseException) -> tuple[str, str | None]:
    """Return the name and the title of the innermost node that the evaluator ran when it failed.

    The evaluator's own message names none.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    running = [f.f_locals.get("node") for f in frames if f.f_code is ReferenceEvaluator.run.__code__]
    nodes = [node for one in running if isinstance(node := getattr(one, "onnx_node", None), onnx.NodeProto)]
    if not nodes:
        return "", None
    node = nodes[-1]
    makes = next(iter(filter(None, node.output)), "")
    title = f"node '{node.name}' ({node.op_type})" if node.name else f"the {node.op_type} that makes '{makes}'"
    return node.name or makes, title


def _arrays(output: Any) -> Any:
    """Return a tensor, or a list of them: a sequence, or the one that an optional holds."""
    return list(map(np.asarray, output)) if isinstance(output, list) else np.asarray(output)


# --- operators that the evaluator computes wrong ----------------------------------------------------------------------


class BatchNormalization(OpRun):  # type: ignore[misc,unused-ignore]
    """Batch normalization of all opsets.

    Before opset 14 onnx's own takes the mean and variance of the batch, also where the node has one output, which makes
    it the inference form. It does not know `spatial`, which opset 9 dropped: statistics of each place, not of each
    channel. With several outputs it gives a tuple in a tuple, or fewer than the operator has.
    """

    op_domain = ""

    def _run(self, x: Array, scale: Array, bias: Array, mean: Array, var: Array, **_: Any) -> tuple[Array, ...]:
        node = self.onnx_node
        given = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        epsilon, momentum = given.get("epsilon", 1e-5), given.get("momentum", 0.9)
        wanted = sum(bool(name) for name in node.output)
        modern = self.run_params.get("opsets", {}).get("", 14) >= 14
        training = bool(given.get("training_mode", 0)) if modern else wanted > 1
        spatial = bool(given.get("spatial", 1))
        over = tuple(a for a in range(x.ndim) if a != 1) if spatial else (0,)
        shape = (-1, *(1,) * (x.ndim - 2)) if spatial else x.shape[1:]
        own = [s.reshape(mean.shape) for s in (x.mean(axis=over), x.var(axis=over))] if training else [mean, var]
        middle, spread, factor, offset = (a.reshape(shape) for a in (*own, scale, bias))
        y = (factor * (x - middle) / np.sqrt(spread + epsilon) + offset).astype(x.dtype)
        moved = [a * momentum + b * (1 - momentum) for a, b in zip((mean, var), own, strict=True)]
        outputs = [y, *(a.astype(mean.dtype) for a in (moved if modern else (*moved, *own)))]
        return tuple(outputs[: len(node.output)])


class GatherElements(OpRun):  # type: ignore[misc,unused-ignore]
    """GatherElements whose indices may be shorter than the data along the other axes, as the specification has it."""

    op_domain = ""

    def _run(self, data: Array, indices: Array, axis: int | None = None) -> tuple[Array, ...]:
        along = (axis or 0) % max(data.ndim, 1)
        part = tuple(slice(None) if n == along else slice(0, size) for n, size in enumerate(indices.shape))
        places = np.where(indices < 0, indices + data.shape[along], indices)
        return (np.take_along_axis(data[part], places, axis=along),)


class GlobalMaxPool(OpRun):  # type: ignore[misc,unused-ignore]
    """GlobalMaxPool that keeps every axis: onnx's own drops that of a tensor with one."""

    op_domain = ""

    def _run(self, x: Array) -> tuple[Array, ...]:
        return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)


class DequantizeLinear(OpRun):  # type: ignore[misc,unused-ignore]
    """DequantizeLinear of opsets 10 to 18, which onnx's evaluator does not have."""

    op_domain = ""

    def _run(self, x: Array, scale: Array, zero: Array | None = None, **given: Any) -> tuple[Array, ...]:
        axis = given.get("axis")
        place = (1 if axis is None else axis) % max(x.ndim, 1)
        shape = [-1 if n == place else 1 for n in range(x.ndim)] if scale.ndim and scale.size > 1 else []
        shift = 0 if zero is None else zero.astype(np.int64).reshape(shape)
        return (((x.astype(np.int64) - shift) * scale.reshape(shape)).astype(scale.dtype),)


_REPAIRED = (BatchNormalization, GatherElements, GlobalMaxPool)
_FIRST_DEQUANTIZE = 19


def _repaired(model: ir.Model) -> list[type]:
    opset = opset_of(model) or _FIRST_DEQUANTIZE
    return [*_REPAIRED, *([DequantizeLinear] if opset < _FIRST_DEQUANTIZE else [])]


# --- operators of one's own -------------------------------------------------------------------------------------------


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
