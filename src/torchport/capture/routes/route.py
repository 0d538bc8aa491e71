"""A route's interface, what it is given and gives back, and the order in which routes are tried."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Protocol

import onnx_ir as ir
import torch

from torchport.capture.dynamic_dims import InputDims
from torchport.capture.guards import Challenge
from torchport.capture.origins import Site
from torchport.capture.quotients import Joining, Splits, fits, split_dims, split_tensors, splits_of, whole_axis
from torchport.capture.structure import Call
from torchport.errors import OptionError
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
        elsewhere: inputs at other sizes; programs captured with each are compared, where sizes have to be numbers.
        splits: axes of the inputs that torch gets in two; `tensors`, `dims` and `call` are those that it gets.
        learned: the repairs that a capture of the model needed; the next one, at other sizes say, begins with them.
        conditions: where conditions on sizes are asked that a refused capture of route `export` settled, and that not
            every size answers alike: `rewrite` begins with them.
        judged: refuse such a capture before it is translated.
        unchecked: the model did not run on `tensors`, which hold no numbers: a failed capture says nothing then.
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
    elsewhere: tuple[tuple[torch.Tensor, ...], ...] = ()
    splits: Splits = dataclasses.field(default_factory=dict)
    verbose: bool = False
    learned: list[Any] = dataclasses.field(default_factory=list)
    conditions: list[Site] = dataclasses.field(default_factory=list)
    judged: bool = False
    unchecked: bool = False

    def by_quotients(self, steps: Mapping[str, int]) -> Request:
        """Return a request that captures sizes by their quotients, where they are multiples; itself where none is.

        Args:
            steps: by root dimension the number that PyTorch takes multiples of.
        """
        splits = splits_of(self.dims, steps)
        if not splits or not fits(self.call.names, self.tensors, splits):
            return self
        dims = {name: split_dims(axes, splits.get(name, ())) for name, axes in self.dims.items()}
        tensors = split_tensors(self.call.names, self.tensors, splits)
        return dataclasses.replace(self, call=Joining(self.call, splits), tensors=tensors, dims=dims, splits=splits)

    def axis(self, name: str, axis: int) -> int:
        """Return the axis of the user's input that an axis of `tensors` belongs to."""
        return whole_axis(axis, self.splits.get(name, ()))


@dataclasses.dataclass(frozen=True)
class Captured:
    """An ONNX model straight from a route: inputs and outputs in order, names not yet the user's.

    Attributes:
        suspects: lines at which the capture may have frozen a choice; each asks for more proof.
        example_only: the capture followed the example and nothing else; it asks for more proof in any case.
        repairs: the names of the repairs it took, see capture/repairs.
        challenges: sizes at which the capture's assumptions do not hold, to be asked in the proof.
        reasons: why it may answer otherwise than the model; said only if it does.
        notes: what the capture left out on purpose.
    """

    model: ir.Model
    suspects: tuple[Finding, ...] = ()
    challenges: tuple[Challenge, ...] = ()
    example_only: bool = False
    repairs: tuple[str, ...] = ()
    reasons: tuple[Finding, ...] = ()
    notes: tuple[Finding, ...] = ()


class Route(Protocol):
    """One way to capture. Raises CaptureError, OpsetError or lets nothing else out."""

    def __call__(self, request: Request) -> Captured: ...


# Which routes there are, and in which order to try them.

ROUTES = ("export", "rewrite", "script", "trace")


def order(target: Any, route: str) -> tuple[str, ...]:
    """The routes to try for a model: the one asked for, or all that make sense, the surest first.

    `export` keeps most and blames best; `rewrite` is `export` with control flow rewritten; `script` keeps control flow
    too, of code TorchScript understands; `trace` takes anything, and is trusted least.
    """
    if route not in (*ROUTES, "auto"):
        raise OptionError(f"there is no route '{route}'", next_step=f"use auto, {', '.join(ROUTES)}")
    possible = _possible(target)
    if route == "auto":
        return possible
    if route not in possible:
        raise OptionError(
            f"route '{route}' cannot take {_kind(target)}", next_step=f"use route {' or '.join(possible)}"
        )
    return (route,)


def _possible(target: Any) -> tuple[str, ...]:
    if isinstance(target, torch.export.ExportedProgram):
        return ("export",)
    if isinstance(target, (torch.jit.ScriptModule, torch.jit.ScriptFunction)):
        return ("script",)
    return ROUTES


def _kind(target: Any) -> str:
    return "an ExportedProgram" if isinstance(target, torch.export.ExportedProgram) else "a TorchScript module"


def load(route: str) -> Route:
    """The route's function; its module is imported only when its turn comes."""
    return import_module(f"torchport.capture.routes.{route}").capture
