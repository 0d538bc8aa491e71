"""The outputs that are right, and how a candidate's outputs are held against them."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import onnx_ir as ir

from torchport.comparison.sides import TorchSide
from torchport.errors import InputError
from torchport.inputs.samples import Sample
from torchport.irtools.names import where
from torchport.irtools.random_numbers import random_outputs
from torchport.numerics.check import kind_problem
from torchport.numerics.error_metrics import measure
from torchport.numerics.tolerance import Limits
from torchport.tensors import Array


@dataclasses.dataclass(frozen=True)
class Judgment:
    """How a candidate's outputs compare.

    Attributes:
        status: right or wrong; random, where the outputs that can be compared are right, and others are drawn anew.
        max_abs: the largest absolute error of any output; None if none can be compared.
        max_rel: the largest relative error.
        reason: the first output that is wrong, and why; or why outputs cannot be compared.
        next_step: what to do about it.
    """

    status: Literal["right", "wrong", "random"]
    max_abs: float | None
    max_rel: float | None
    reason: str = ""
    next_step: str = ""

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
        random: outputs that the model draws at random, each with the node that draws.
    """

    name: str
    outputs: tuple[Array, ...]
    names: tuple[str, ...]
    limits: Limits
    random: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def judge(self, outputs: Sequence[Array]) -> Judgment:
        """Hold outputs against these. Another number of outputs is wrong; of random ones only the form is compared."""
        if len(outputs) != len(self.outputs):
            reason = f"it gives {len(outputs)} outputs, {self.name} gives {len(self.outputs)}"
            return Judgment("wrong", math.inf, math.inf, reason)
        given = list(zip(self.names, self.outputs, outputs, strict=True))
        figures = [
            measure(name, want, got, tolerance=self.limits(want.dtype.name, got.dtype.name))
            for name, want, got in given
            if name not in self.random
        ]
        problems = [(f.name, f.problem) for f in figures if not f.ok]
        problems += [(n, kind_problem(want, got)) for n, want, got in given if n in self.random]
        largest = max((f.max_abs for f in figures), default=None if self.random else 0.0)
        relative = max((f.max_rel for f in figures), default=None if self.random else 0.0)
        for name, problem in problems:
            if problem:
                return Judgment("wrong", largest, relative, f"output '{name}': {problem}")
        if self.random:
            return Judgment("random", largest, relative, *self._random())
        return Judgment("right", largest, relative)

    def _random(self) -> tuple[str, str]:
        names = ", ".join(f"'{name}'" for name in self.random)
        nodes = ", ".join(dict.fromkeys(self.random.values()))
        several = len(self.random) > 1
        return (
            f"output{'s' * several} {names} cannot be compared: {nodes} draws random numbers",
            "make the random numbers an input of the model, or export it in eval mode",
        )


def reference_of(name: str, outputs: Sequence[Array], model: ir.Model, limits: Limits) -> Reference:
    """Return outputs of a model as what is right, with those among them that the model draws at random."""
    names = tuple(str(v.name) for v in model.graph.outputs)
    random = {output: where(node) for output, node in random_outputs(model).items()}
    return Reference(name, tuple(outputs), names, limits, random)


def torch_reference(
    against: Any, feeds: Mapping[str, Array], model: ir.Model, limits: Limits, *, seed: int, trust: bool
) -> Reference:
    """Return PyTorch's outputs.

    Args:
        against: the PyTorch model, or its source, ``model.py:Net``.
        feeds: the inputs by name.
        model: the ONNX model.
        limits: the tolerances.
        seed: for weights that a source draws.
        trust: open files that run code when they are loaded.
    """
    called = against
    if isinstance(against, str):
        from torchport.benchmark.torch_candidate import loaded_model

        called = loaded_model(against, seed, trust=trust)
    with contextlib.ExitStack() as stack:
        side = TorchSide(called, Sample("sample", feeds), stack)
        outputs = tuple(np.asarray(a) for a in side.ask(feeds).values())
    names = [str(v.name) for v in model.graph.outputs]
    if len(outputs) != len(names):
        raise InputError(
            f"PyTorch gives {len(outputs)} outputs, the ONNX model {len(names)}",
            next_step="give the model that the file was exported from",
        )
    return reference_of("PyTorch", outputs, model, limits)
