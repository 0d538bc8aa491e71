"""The `trace` route: run the example once, record the operators, translate with the TorchScript exporter.

A trace is right for the example by construction and may be wrong for everything else, so each of the tracer's
warnings is handed on as a suspect, to be proven harmless.
"""

from __future__ import annotations

import contextlib
import io
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import onnx
import onnx_ir as ir
import torch
from torch.onnx import TrainingMode

from torchport.capture.origins import line_of_error, place, place_of_frame
from torchport.capture.repairs import repaired
from torchport.capture.routes.export import doubts
from torchport.capture.routes.route import Captured, Request
from torchport.capture.structure import FlatModule
from torchport.errors import CaptureError, OpsetError
from torchport.operators import lowering
from torchport.process import silence, silence_native
from torchport.results import Finding
from torchport.torch_compat.error_texts import SCRIPT_OPERATOR, SCRIPT_SINCE, TRACER_WARNING

LOWEST_OPSET, HIGHEST_OPSET = 7, 20
_INLINE_LIMIT = 3 << 29  # 1.5 GiB: beyond, weights are attached by reference instead of passing through protobuf


def capture(request: Request) -> Captured:
    module: Any = FlatModule(request.call)
    with silence(verbose=request.verbose), _watched_conversions() as suspects:
        try:
            if any(isinstance(m, torch.jit.ScriptModule) for m in module.modules()):
                module = trace_module(module, request)
            with repaired(request.call.target) as repairs:
                model = translate(module, request)
        except (CaptureError, OpsetError):
            raise
        except Exception as error:
            raise CaptureError(f"trace: {_first(error)}", where=line_of_error(error) or None) from error
    challenges = doubts(request) if request.dims else ()
    return Captured(model, tuple(suspects.values()), challenges, example_only=True, repairs=tuple(repairs))


def trace_module(module: FlatModule, request: Request) -> torch.jit.ScriptModule:
    """Trace with torch.jit.trace, which keeps scripted parts as they are."""
    return torch.jit.trace(module, request.tensors, check_trace=False, strict=False)


def translate(module: Any, request: Request) -> ir.Model:
    """Translate a module or ScriptModule with the TorchScript exporter, zero-copy for large weights."""
    if any(tensor.numel() == 0 for tensor in request.tensors):
        raise CaptureError(
            "torch's TorchScript exporter divides by the size of an empty example, which ends the process"
        )
    names = list(request.call.names)
    weights = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    inline = not request.weights_apart and sum(w.nbytes for w in weights.values()) < _INLINE_LIMIT
    target = io.BytesIO()
    opset = min(max(request.opset, LOWEST_OPSET), HIGHEST_OPSET)
    try:
        with contextlib.nullcontext() if request.verbose else silence_native(), lowering.torchscript_symbolics(opset):
            torch.onnx.export(
                module,
                request.tensors,
                target,  # type: ignore[arg-type]
                dynamo=False,
                export_params=inline,
                keep_initializers_as_inputs=not inline,  # else equal weights are merged into one
                verbose=True,  # keeps source lines on the nodes; it prints the graph too, hence the silence
                input_names=names,
                opset_version=opset,
                dynamic_axes={
                    name: {axis: dim.name for axis, dim in axes.items()} for name, axes in request.dims.items()
                },
                training=TrainingMode.PRESERVE,
                do_constant_folding=request.fold_constants and inline,
                custom_opsets=dict(request.custom_opsets),
            )
    except torch.onnx.errors.UnsupportedOperatorError as error:
        raise _unsupported(error, request.opset) from error
    model = ir.from_proto(onnx.load_model_from_string(target.getvalue()))
    if not inline:
        _attach(model, weights, names)
    return model


def _attach(model: ir.Model, weights: dict[str, torch.Tensor], names: list[str]) -> None:
    """Turn the inputs that stand for weights into initializers that share torch's memory."""
    for value in list(model.graph.inputs):
        if value.name in weights and value.name not in names:
            model.graph.inputs.remove(value)
            value.const_value = ir.tensor_adapters.TorchTensor(weights[value.name].detach(), name=value.name)
            model.graph.initializers.add(value)


def _unsupported(error: Exception, opset: int) -> CaptureError | OpsetError:
    text = str(error)
    operator = SCRIPT_OPERATOR.search(text)
    name = operator[1] or operator[2] if operator else _first(error)
    since = SCRIPT_SINCE.search(text)
    if since and int(since[1]) > opset:
        return OpsetError(
            f"{name} needs opset {since[1]}",
            blockers=[f"{name} (from opset {since[1]})"],
            nearest=int(since[1]),
            where=line_of_error(error) or None,
        )
    return CaptureError(f"no ONNX translation for {name}", where=line_of_error(error) or None)


@contextlib.contextmanager
def _watched_conversions() -> Iterator[dict[str, Finding]]:
    """Collect the tracer's warnings, one for each of the user's lines.

    The line is looked up on the stack while the tensor is converted: a warning itself names the innermost Python file,
    which may be one of ours or of torch's.
    """
    found: dict[str, Finding] = {}

    def note(
        message: Any, category: type[Warning], filename: str, lineno: int, file: Any = None, line: Any = None
    ) -> None:
        if category.__name__ == TRACER_WARNING:
            where = place_of_frame(sys._getframe()) or place(filename, lineno)
            text = str(message).split(". ")[0]
            found.setdefault(where, Finding(f"the trace may have frozen a choice: {text}", where))

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        yield found


def _first(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__
