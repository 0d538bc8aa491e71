"""The outputs that are right, and how a candidate's outputs are held against them."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from torchport.comparison.sides import TorchSide
from torchport.errors import InputError
from torchport.inputs.samples import Sample
from torchport.numerics.error_metrics import measure
from torchport.numerics.tolerance import Limits
from torchport.tensors import Array


@dataclasses.dataclass(frozen=True)
class Judgment:
    """How a candidate's outputs compare.

    Attributes:
        status: right or wrong.
        max_abs: the largest absolute error of any output.
        max_rel: the largest relative error.
        reason: the first output that is wrong, and why.
    """

    status: Literal["right", "wrong"]
    max_abs: float
    max_rel: float
    reason: str = ""

    @property
    def fields(self) -> dict[str, Any]:
        """Return the fields of a row."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


@dataclasses.dataclass(frozen=True)
class Reference:
    """Outputs that are taken as right.

    Attributes:
        name: whose they are.
        outputs: in the model's order.
        names: of the outputs.
        limits: the tolerances.
    """

    name: str
    outputs: tuple[Array, ...]
    names: tuple[str, ...]
    limits: Limits

    def judge(self, outputs: Sequence[Array]) -> Judgment:
        """Hold outputs against these. Another number of outputs is wrong."""
        if len(outputs) != len(self.outputs):
            reason = f"it gives {len(outputs)} outputs, {self.name} gives {len(self.outputs)}"
            return Judgment("wrong", math.inf, math.inf, reason)
        figures = [
            measure(name, want, got, tolerance=self.limits(want.dtype.name, got.dtype.name))
            for name, want, got in zip(self.names, self.outputs, outputs, strict=True)
        ]
        wrong = next((f for f in figures if not f.ok), None)
        largest = max((f.max_abs for f in figures), default=0.0)
        relative = max((f.max_rel for f in figures), default=0.0)
        if wrong is None:
            return Judgment("right", largest, relative)
        return Judgment("wrong", largest, relative, f"output '{wrong.name}': {wrong.problem}")


def torch_reference(
    against: Any, feeds: Mapping[str, Array], names: Sequence[str], limits: Limits, *, seed: int, trust: bool
) -> Reference:
    """Return PyTorch's outputs.

    Args:
        against: the PyTorch model, or its source, ``model.py:Net``.
        feeds: the inputs by name.
        names: of the ONNX model's outputs.
        limits: the tolerances.
        seed: for weights that a source draws.
        trust: open files that run code when they are loaded.
    """
    model = against
    if isinstance(against, str):
        from torchport.benchmark.torch_candidate import loaded_model

        model = loaded_model(against, seed, trust=trust)
    with contextlib.ExitStack() as stack:
        side = TorchSide(model, Sample("sample", feeds), stack)
        outputs = tuple(np.asarray(a) for a in side.ask(feeds).values())
    if len(outputs) != len(names):
        raise InputError(
            f"PyTorch gives {len(outputs)} outputs, the ONNX model {len(names)}",
            next_step="give the model that the file was exported from",
        )
    return Reference("PyTorch", outputs, tuple(names), limits)
