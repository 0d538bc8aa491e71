"""The `script` route: compile the model's Python with torch.jit.script, so that branches and loops survive.

The compiled model is called from a traced wrapper that takes flat tensors, which leaves its control flow whole.
"""

from __future__ import annotations

import contextlib
from typing import Any

import onnx_ir as ir
import torch

from torchport.capture.origins import line_of_error
from torchport.capture.routes.route import Captured, Request
from torchport.capture.routes.trace import trace_module, translate
from torchport.capture.structure import Call, FlatModule
from torchport.errors import CaptureError, OpsetError
from torchport.process import silence, silence_native
from torchport.torch_compat.tracing import unshared_types


def capture(request: Request) -> Captured:
    with silence(verbose=request.verbose):
        try:
            with contextlib.nullcontext() if request.verbose else silence_native():
                call = _scripted(request.call)
                of_tensors = as_tensors(call.target)
                module = FlatModule(call if of_tensors is None else call.on(of_tensors))
            model = translate(trace_module(module, request), request)
            if of_tensors is not None:
                without_holder(model)
            return Captured(model)
        except (CaptureError, OpsetError):
            raise
        except Exception as error:
            raise CaptureError(f"script: {_reason(error)}", where=line_of_error(error) or None) from error


def is_scripted(target: Any) -> bool:
    return isinstance(target, (torch.jit.ScriptModule, torch.jit.ScriptFunction))


def _scripted(call: Call) -> Call:
    """The same call on the compiled model.

    torch's exporter puts the graphs of submodules in the place of their calls, in the compiled model itself: exported
    again, it has lost the names of its submodules. So each export of a plain module compiles graphs of its own.
    """
    if is_scripted(call.target):
        return call
    with unshared_types():
        return call.on(torch.jit.script(call.target))


def _reason(error: Exception) -> str:
    """torch.jit.script puts the source excerpt first and last; the sentence is the first line that has words."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(":")[:200] if lines else type(error).__name__


# Numbers that a compiled model gives, as tensors: the tracer around it takes tensors and tuples of them only.
#
# The compiled model is called by another one, compiled from a few lines that are written for what it takes and gives.
# What is neither a tensor nor a number, a text say, is left out, as on every route.

_DTYPES = {"IntType": "int64", "FloatType": "float32", "BoolType": "bool", "NumberType": "float32"}
_LEFT_OUT = ("StringType", "NoneType", "DeviceObjType")
_HELD = "model"  # as in FlatModule: taken off again, see `without_holder`


def as_tensors(scripted: Any) -> Any | None:
    """A compiled model that gives tensors where `scripted` gives numbers; None if it gives none."""
    is_module = isinstance(scripted, torch.nn.Module)
    schema = (scripted.forward if is_module else scripted).schema
    given = schema.returns[0].type
    if not _has_numbers(given):
        return None
    holder = torch.nn.Module()
    setattr(holder, _HELD, scripted)
    holder.training = getattr(scripted, "training", False)
    caller: Any = torch.jit.script(holder)
    if caller._c._has_method("forward"):  # torch compiles what holds the same but once
        return caller
    arguments = schema.arguments[1:] if is_module else schema.arguments  # a module's first is itself
    signature = ", ".join(["self", *map(_parameter, arguments)])
    names = ", ".join(f"{a.name}={a.name}" if a.kwarg_only else a.name for a in arguments)
    result = _expression(given, "given") or "()"
    caller.define(f"def forward({signature}):\n    given = self.{_HELD}({names})\n    return {result}\n")
    return caller


def _parameter(argument: Any) -> str:
    default = f" = {argument.default_value!r}" if argument.has_default_value() else ""
    return f"{argument.name}: {argument.type.annotation_str}{default}"


def _has_numbers(kind: Any) -> bool:
    if kind.kind() == "TupleType":
        return any(map(_has_numbers, kind.elements()))
    return kind.kind() in (*_DTYPES, *_LEFT_OUT)


def _expression(kind: Any, value: str) -> str:
    """What is given for `value`; nothing for what is left out."""
    if kind.kind() == "TupleType":
        parts = [_expression(k, f"{value}[{n}]") for n, k in enumerate(kind.elements())]
        return "(" + "".join(f"{part}, " for part in parts if part) + ")" if any(parts) else ""
    if kind.kind() in _LEFT_OUT:
        return ""
    dtype = _DTYPES.get(kind.kind())
    return f"torch.tensor({value}, dtype=torch.{dtype})" if dtype else value


def without_holder(model: ir.Model) -> None:
    """The names as they are without the model around."""
    for value in model.graph.initializers.copy().values():
        value.name = str(value.name).replace(f"{_HELD}.{_HELD}.", f"{_HELD}.", 1)
    outer, inner = f"/{_HELD}/", f"/{_HELD}/{_HELD}/"
    for node in model.graph.all_nodes():
        name = node.name or ""
        if name.startswith(inner):
            node.name = outer + name.removeprefix(inner)
        elif name.startswith(outer):
            node.name = f"{outer}as_tensor_{name.removeprefix(outer)}"  # the model may have a node of that name
