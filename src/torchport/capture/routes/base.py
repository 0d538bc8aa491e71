"""What a route is given and what it gives back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import onnx_ir as ir
import torch

from torchport.capture.dynamic import InputDims
from torchport.capture.guards import Challenge
from torchport.capture.structure import Call
from torchport.results import Finding


@dataclasses.dataclass(frozen=True)
class Request:
    """What to capture.

    Attributes:
        call: the model and its example, flat.
        tensors: the inputs to capture with. They may be larger than the example's: torch freezes sizes of 0 and 1.
        dims: which axes may vary, by input name.
        weights_apart: keep every weight under its own name, nothing folded or merged.
        opset: the opset wanted. A route comes as near as it can by itself; the rest is conversion.
        program: an ExportedProgram, when that is what the user gave.
    """

    call: Call
    tensors: tuple[torch.Tensor, ...]
    dims: InputDims
    opset: int
    fold_constants: bool = True
    weights_apart: bool = False
    translations: Mapping[Any, Callable[..., Any]] = dataclasses.field(default_factory=dict)
    custom_opsets: Mapping[str, int] = dataclasses.field(default_factory=dict)
    program: torch.export.ExportedProgram | None = None
    verbose: bool = False


@dataclasses.dataclass(frozen=True)
class Captured:
    """An ONNX model straight from a route: inputs and outputs in order, names not yet the user's.

    Attributes:
        suspects: lines at which the capture may have frozen a choice; each asks for more proof.
        example_only: the capture followed the example and nothing else; it asks for more proof in any case.
        repairs: the names of the repairs it took, see capture/repairs.
        challenges: sizes at which the capture's assumptions do not hold, to be asked in the proof.
        reasons: why it may answer otherwise than the model; said only if it does.
    """

    model: ir.Model
    suspects: tuple[Finding, ...] = ()
    challenges: tuple[Challenge, ...] = ()
    example_only: bool = False
    repairs: tuple[str, ...] = ()
    reasons: tuple[Finding, ...] = ()


class Route(Protocol):
    """One way to capture. Raises CaptureError, OpsetError or lets nothing else out."""

    def __call__(self, request: Request) -> Captured: ...
