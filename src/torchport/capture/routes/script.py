"""The `script` route: compile the model's Python with torch.jit.script, so that branches and loops survive.

The compiled model is called from a traced wrapper that takes flat tensors, which leaves its control flow whole.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from torchport.capture.blame import line_of_error
from torchport.capture.routes import script_numbers
from torchport.capture.routes.base import Captured, Request
from torchport.capture.routes.trace import trace_module, translate
from torchport.capture.structure import Call, FlatModule
from torchport.errors import CaptureError, OpsetError
from torchport.process import silence, silence_native


def capture(request: Request) -> Captured:
    with silence(verbose=request.verbose):
        try:
            with contextlib.nullcontext() if request.verbose else silence_native():
                call = _scripted(request.call)
                of_tensors = script_numbers.as_tensors(call.target)
                module = FlatModule(call if of_tensors is None else call.on(of_tensors))
            model = translate(trace_module(module, request), request)
            if of_tensors is not None:
                script_numbers.without_holder(model)
            return Captured(model)
        except (CaptureError, OpsetError):
            raise
        except Exception as error:
            raise CaptureError(f"script: {_reason(error)}", where=line_of_error(error) or None) from error


def is_scripted(target: Any) -> bool:
    return isinstance(target, (torch.jit.ScriptModule, torch.jit.ScriptFunction))


def _scripted(call: Call) -> Call:
    """The same call on the compiled model."""
    if is_scripted(call.target):
        return call
    return call.on(torch.jit.script(call.target))


def _reason(error: Exception) -> str:
    """torch.jit.script puts the source excerpt first and last; the sentence is the first line that has words."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(":")[:200] if lines else type(error).__name__
