"""The time of each kernel of OpenVINO, from its counters and the graph that it runs.

OpenVINO names the nodes that it fused, but not all: a MatMul that became part of the addition behind it has no name
there, and a LayerNormalization has one that OpenVINO made up. The counters are means over all runs of a request, so the
runs that warm it up are taken out again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from torchport.engines.node_owners import owners_of
from torchport.engines.profiling import Kernel, KernelTimes, Profiler, Span
from torchport.errors import EngineError
from torchport.irtools.node_reader import is_constant_node
from torchport.tensors import Array

_DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "f64": "float64"}
_SOURCES = ("Const", "Input", "Output")
_MOVED = ("Transpose", "Reshape", "Reorder")
_VIEWS = ("Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Expand", "Dropout")


class OpenVinoProfiler(Profiler):
    """A compiled model that counts.

    Args:
        runner: the model, opened with counters; it has the `compiled` model and its `counters`.
        model: the same model.
    """

    def __init__(self, runner: Any, model: ir.Model) -> None:
        self._runner, self._model = runner, model
        self._ran, self._left_out = 0, 0
        self._before: dict[str, float] = {}

    def run(self, feeds: Mapping[str, Array]) -> None:
        self._runner.run(feeds)
        self._ran += 1

    def warm(self) -> None:
        self._before, self._left_out = self._totals(), self._ran

    def _totals(self) -> dict[str, float]:
        """Return the time of each kernel in all runs."""
        executed = [c for c in self._runner.counters() if str(c.status).endswith("EXECUTED")]
        return {c.node_name: c.real_time.total_seconds() * self._ran for c in executed}

    def times(self) -> KernelTimes:
        runs = self._ran - self._left_out
        if not runs:
            raise EngineError("the model was not run")
        totals = self._totals()
        steps = [s for s in _steps(self._runner.compiled.get_runtime_model()) if s.kind not in _SOURCES]
        groups, removed = _computed(self._model.graph, steps)
        kernels = []
        for position, step in enumerate(steps):
            if step.name not in totals and (step.kind in _MOVED or not groups[position]):
                continue
            # OpenVINO calls what takes less than a microsecond not run
            seconds = max(totals.get(step.name, 0.0) - self._before.get(step.name, 0.0), 0.0) / runs
            beside = () if groups[position] else _beside(step, steps, groups)
            kernels.append(
                Kernel(step.name, step.kind, seconds, 1.0, groups[position], beside, None, "CPU", step.dtype)
            )
        return KernelTimes(tuple(kernels), runs, False, _end_to_end(kernels), measured_starts=False, removed=removed)

    def close(self) -> None:
        """There is nothing to remove: counters are in memory."""


class _Step:
    """A node of the graph that OpenVINO runs."""

    def __init__(self, node: Any) -> None:
        facts = {key: node.rt_info[key].astype(str) for key in ("originalLayersNames", "layerType", "runtimePrecision")}
        self.name: str = node.get_friendly_name()
        self.kind: str = facts["layerType"]
        self.names = [name for name in facts["originalLayersNames"].split(",") if name]
        self.dtype = _DTYPES.get(facts["runtimePrecision"], facts["runtimePrecision"])
        self.makers = [value.get_node().get_friendly_name() for value in node.input_values()]


def _steps(graph: Any) -> list[_Step]:
    return [_Step(node) for node in graph.get_ordered_ops() if "originalLayersNames" in node.rt_info]


def _computed(graph: ir.Graph, steps: Sequence[_Step]) -> tuple[list[tuple[ir.Node, ...]], tuple[ir.Node, ...]]:
    """Return the model's nodes that each step computes, and those that none does."""
    by_name = {str(v.name): node for node in graph for v in node.outputs if v.name}
    by_name |= {str(node.name): node for node in graph if node.name}
    anchors: dict[ir.Node, int] = {}
    named = {step.name for step in steps if any(name in by_name for name in step.names)}
    for position, step in enumerate(steps):
        for name in step.names:
            if name in by_name:
                node = by_name[name]
                anchors.setdefault(node, position if node.op_type in _VIEWS else _computing(position, steps, named))
    _add_renamed(steps, anchors)
    moved = {n for n, step in enumerate(steps) if step.kind in _MOVED}
    owners = owners_of(graph, anchors, closed=moved)
    groups = [tuple(node for node in graph if owners.get(node) == n) for n in range(len(steps))]
    return groups, tuple(n for n in graph if n not in owners and not is_constant_node(n))


def _computing(position: int, steps: Sequence[_Step], named: Collection[str]) -> int:
    """Return the step that computes what a step of this name gives.

    The name of a node is that of its last step, which may only transpose what another step, with a name of OpenVINO's
    own, computed: a sequence of an LSTM, say.
    """
    positions = {step.name: n for n, step in enumerate(steps)}
    place = position
    while steps[place].kind in _MOVED:
        before = [positions[name] for name in steps[place].makers if name in positions]
        if len(before) != 1 or steps[before[0]].name in named:
            return position
        place = before[0]
    return place


def _add_renamed(steps: Sequence[_Step], anchors: dict[ir.Node, int]) -> None:
    """Give a step under a name of OpenVINO's own the one node that follows what the step reads, if there is one."""
    positions = {step.name: n for n, step in enumerate(steps)}
    for position, step in enumerate(steps):
        if position in anchors.values() or step.kind in _MOVED:  # nothing is computed by moving
            continue
        before = _before(step, steps, positions)
        made = [v for node, owner in anchors.items() if owner in before for v in node.outputs]
        free = {user for value in made for user in value.consumers() if user not in anchors}
        if len(free) == 1:
            anchors[free.pop()] = position


def _before(step: _Step, steps: Sequence[_Step], positions: Mapping[str, int]) -> set[int]:
    """Return the steps that make what a step reads, and those before them where they only move it."""
    found: set[int] = set()
    pending = [positions[name] for name in step.makers if name in positions]
    while pending:
        place = pending.pop()
        if place not in found:
            found.add(place)
            if steps[place].kind in _MOVED:
                pending += [positions[name] for name in steps[place].makers if name in positions]
    return found


def _beside(step: _Step, steps: Sequence[_Step], groups: Sequence[tuple[ir.Node, ...]]) -> tuple[ir.Node, ...]:
    """Return the nodes that make an inserted step's input, else those that take its output."""
    positions = {other.name: n for n, other in enumerate(steps)}
    near = [positions[name] for name in step.makers if name in positions]
    near += [n for n, other in enumerate(steps) if step.name in other.makers]
    return next((groups[n] for n in near if groups[n]), ())


def _end_to_end(kernels: Sequence[Kernel]) -> tuple[Span, ...]:
    """Return the kernels one after the other: OpenVINO does not tell when they start."""
    spans: list[Span] = []
    start = 0.0
    for position, kernel in enumerate(kernels):
        spans.append(Span(position, start, kernel.seconds))
        start += kernel.seconds
    return tuple(spans)
