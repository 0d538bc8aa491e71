"""tp.operators.test: an operator's kernel and lowering beside PyTorch, over sampled inputs, with times."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from torchport.conversion.export import export
from torchport.engines.session import Session, open_session
from torchport.errors import OptionError, TorchportError
from torchport.numerics.check import check_output
from torchport.numerics.tolerance import tolerance
from torchport.operators.definition import Operator
from torchport.tensors import dtype_name, to_numpy
from torchport.torch_compat.tracing import tree_flatten, tree_leaves, tree_unflatten

_ROUNDS = 5


@dataclasses.dataclass(frozen=True)
class Trial:
    """One way to run an operator on one sample, beside PyTorch."""

    operator: str
    sample: str
    way: str
    right: bool
    largest_difference: float
    seconds: float
    torch_seconds: float
    problem: str = ""

    def __str__(self) -> str:
        times = f"{self.seconds * 1e6:.0f} us (PyTorch {self.torch_seconds * 1e6:.0f} us)"
        words = self.problem or f"off by {self.largest_difference:.2g}, {times}"
        return f"{'right' if self.right else 'WRONG'}  {self.way:<8}  {self.sample}: {words}"


def test(operator: Operator) -> list[Trial]:
    """Compare an operator's kernel and its lowering with PyTorch, over its samples.

    Args:
        operator: one defined with `tp.operator`.
    """
    if not isinstance(operator, Operator):
        raise OptionError(f"{operator!r} is no operator of tp.operator")
    ways: dict[str, dict[str, Any]] = {}  # what is put aside for each
    if operator.has_kernel:
        ways["kernel"] = {"lowering": None}
    if operator.lowering is not None:
        ways["lowering"] = {"node": None, "_sources": (), "_library": None}
    if not ways:
        ways["node" if operator.node else "traced"] = {}
    samples = operator.sample_inputs()
    return [_trial(operator, sample, way, aside) for sample in samples for way, aside in ways.items()]


def _trial(operator: Operator, sample: tuple[Any, ...], way: str, changes: dict[str, Any]) -> Trial:
    module, tensors = _module(operator, sample)
    with torch.no_grad():
        wanted = [to_numpy(t.contiguous()) for t in tree_leaves(module(*tensors))]
    torch_seconds = _timed(lambda: module(*tensors))
    try:
        with _changed(operator, changes):
            exported = export(module, tuple(tensors), route="export", allow_unproven=True)
            session = open_session(exported.model)
            given = _answers(session, tensors)
            seconds = _timed(lambda: _answers(session, tensors))
    except TorchportError as error:
        return Trial(operator.name, _named(sample), way, False, float("nan"), 0.0, torch_seconds, _why(error))
    problem, worst = _compared(given, wanted)
    return Trial(operator.name, _named(sample), way, not problem, worst, seconds, torch_seconds, problem)


def _why(error: TorchportError) -> str:
    return f"{error.what} ({error.where})" if error.where else str(error.what)


class _changed:  # noqa: N801 - used as a statement
    """The operator with other parts, for a while."""

    def __init__(self, operator: Operator, changes: dict[str, Any]) -> None:
        self.operator, self.changes = operator, changes

    def __enter__(self) -> None:
        self.before = {name: getattr(self.operator, name) for name in self.changes}
        for name, value in self.changes.items():
            setattr(self.operator, name, value)

    def __exit__(self, *_: object) -> None:
        for name, value in self.before.items():
            setattr(self.operator, name, value)


def _module(operator: Operator, sample: tuple[Any, ...]) -> tuple[torch.nn.Module, list[torch.Tensor]]:
    """A model of nothing but the operator; tensors are its inputs, the rest is fixed."""
    leaves, form = tree_flatten(list(sample))
    places = [n for n, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    class Alone(torch.nn.Module):
        def forward(self, *tensors: torch.Tensor) -> Any:
            full = list(leaves)
            for place, tensor in zip(places, tensors, strict=True):
                full[place] = tensor
            return operator(*tree_unflatten(full, form))

    return Alone(), [leaves[n] for n in places]


def _answers(session: Session, tensors: list[torch.Tensor]) -> list[Any]:
    feeds = {i.name: to_numpy(t) for i, t in zip(session.inputs, tensors, strict=True)}
    return list(session.run(feeds).values())


def _timed(function: Callable[[], Any]) -> float:
    def once() -> float:
        started = time.perf_counter()
        function()
        return time.perf_counter() - started

    return statistics.median(once() for _ in range(_ROUNDS))


def _compared(given: list[Any], wanted: list[Any]) -> tuple[str, float]:
    """What is wrong, and the largest difference."""
    if len(given) != len(wanted):
        return f"{len(given)} outputs, PyTorch has {len(wanted)}", math.inf
    pairs = zip(wanted, given, strict=True)
    checks = [check_output(f"output {n}", w, g, tolerance(w.dtype.name)) for n, (w, g) in enumerate(pairs)]
    problem = next((f"{c.name}: {c.problem}" for c in checks if c.problem), "")
    return problem, max((c.max_abs for c in checks), default=0.0)


def _named(sample: tuple[Any, ...]) -> str:
    return " ".join(_named_one(a) for a in sample)


def _named_one(argument: Any) -> str:
    if isinstance(argument, torch.Tensor):
        return f"{dtype_name(argument.dtype)}{list(argument.shape)}".replace(" ", "")
    if isinstance(argument, (list, tuple)) and any(isinstance(a, torch.Tensor) for a in argument):
        return f"[{' '.join(map(_named_one, argument))}]"
    return str(argument)
