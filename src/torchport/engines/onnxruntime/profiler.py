"""The time of each kernel of ONNX Runtime, from the profile that it writes and the optimized graph that it saves."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from torchport.engines.onnxruntime.fused_nodes import Running, running_nodes
from torchport.engines.onnxruntime.session_options import OPTIMIZED, OPTIMIZED_WEIGHTS
from torchport.engines.profiling import Kernel, KernelTimes, Profiler, Span
from torchport.engines.protocol import OpenOptions
from torchport.errors import EngineError
from torchport.tensors import Array

_SUFFIX = "_kernel_time"
_WITH_BODIES = ("If", "Loop", "Scan")
_DTYPES = {"float": "float32", "double": "float64"}
_MICROSECOND = 1e-6


class OrtProfiler(Profiler):
    """A session that writes a profile into a folder of its own.

    Args:
        model: the model that is profiled, without local functions.
        options: as for `open`.
        open_session: opens the model with the options that the profiler adds; the runner has the `session`.
    """

    def __init__(self, model: ir.Model, options: OpenOptions, open_session: Callable[[OpenOptions], Any]) -> None:
        self._model, self._ran, self._left_out = model, 0, 0
        self._folder = tempfile.TemporaryDirectory(prefix="torchport-")
        place = Path(self._folder.name)
        if sys.platform != "win32":
            os.symlink(os.devnull, place / OPTIMIZED_WEIGHTS)  # gigabytes that nobody reads
        own = {"profile": str(place / "profile"), OPTIMIZED: str(place / "optimized.onnx")}
        try:
            self._runner = open_session(dataclasses.replace(options, settings={**options.settings, **own}))
        except BaseException:
            self.close()
            raise
        self.in_python = self._runner.in_python

    def run(self, feeds: Mapping[str, Array]) -> None:
        self._runner.run(feeds)
        self._ran += 1

    def warm(self) -> None:
        self._left_out = self._ran

    def times(self) -> KernelTimes:
        place = Path(self._folder.name)
        optimized = onnx.load(place / "optimized.onnx", load_external_data=False)
        written = Path(self._runner.session.end_profiling())
        runs = _runs(json.loads(written.read_text()))[self._left_out :]
        if not runs:
            raise EngineError("ONNX Runtime wrote no run into its profile")
        running, removed = running_nodes(self._model, optimized)
        return _kernel_times(runs, running, removed)

    def close(self) -> None:
        self._folder.cleanup()


@dataclasses.dataclass
class _Event:
    """A call of a kernel: times in microseconds, and the calls inside it."""

    name: str
    op_type: str
    start: int
    length: int
    thread: int
    facts: Mapping[str, Any]
    inside: list[_Event] = dataclasses.field(default_factory=list)

    @property
    def own(self) -> int:
        """Return the time without the calls inside."""
        return max(self.length - sum(event.length for event in self.inside), 0)


def _runs(events: Sequence[Mapping[str, Any]]) -> list[list[_Event]]:
    """Return the calls of each run in order; those in a loop or branch stand inside its call."""
    runs: list[list[_Event]] = []
    calls: list[_Event] = []
    for event in events:
        if event["cat"] == "Session" and event["name"] == "model_run":
            runs.append(calls)
            calls = []
        elif event["cat"] == "Node" and event["name"].endswith(_SUFFIX):
            name = event["name"].removesuffix(_SUFFIX)
            facts = event["args"]
            call = _Event(name, facts["op_name"], event["ts"], event["dur"], event["tid"], facts)
            if call.op_type in _WITH_BODIES:  # what it called was written before it
                while calls and calls[-1].start >= call.start:
                    call.inside.insert(0, calls.pop())
            calls.append(call)
    return runs


@dataclasses.dataclass
class _Sum:
    """What the calls of one kernel add up to in one run."""

    own: int = 0
    calls: int = 0


_Key = tuple[int, str, str, int]  # the node that runs or 0, name, operator, and the position of the loop around it


class _Table:
    """Counts the calls of runs by kernel."""

    def __init__(self, running: tuple[Running, ...]) -> None:
        self._running = running
        self.kernels: dict[_Key, tuple[Running | None, _Event, int | None]] = {}
        self._positions: dict[_Key, int] = {}

    def count(self, calls: Sequence[_Event]) -> tuple[dict[int, _Sum], list[Span]]:
        sums: dict[int, _Sum] = {}
        spans: list[Span] = []
        first = min((call.start for call in calls), default=0)
        self._add(calls, (self._running,), None, first, sums, spans)
        return sums, spans

    def _add(
        self,
        calls: Sequence[_Event],
        bodies: tuple[tuple[Running, ...], ...],
        inside: int | None,
        first: int,
        sums: dict[int, _Sum],
        spans: list[Span],
    ) -> None:
        for call, node in zip(calls, _paired(calls, bodies), strict=True):
            key = (id(node), "", "", inside or 0) if node is not None else (0, call.name, call.op_type, inside or 0)
            position = self._positions.setdefault(key, len(self._positions))
            self.kernels.setdefault(key, (node, call, inside))
            total = sums.setdefault(position, _Sum())
            total.own, total.calls = total.own + call.own, total.calls + 1
            start = (call.start - first) * _MICROSECOND
            spans.append(Span(position, start, call.length * _MICROSECOND, call.thread))
            if call.inside:
                self._add(call.inside, node.bodies if node is not None else (), position, first, sums, spans)


def _paired(calls: Sequence[_Event], bodies: Iterable[tuple[Running, ...]]) -> list[Running | None]:
    """Return the node that each call runs, None where nothing tells: by their order, else by name."""
    bodies = tuple(bodies)
    for body in bodies:
        times, rest = divmod(len(calls), len(body)) if body else (0, 1)
        if not rest and all(_fits(c, n) for c, n in zip(calls, body * times, strict=True)):
            return list(body * times)
    named = {node.name: node for body in bodies for node in body if node.name}
    nameless: dict[str, list[Running]] = {}
    for body in bodies:
        for own in body:
            if not own.name:
                nameless.setdefault(own.op_type, []).append(own)
    found: list[Running | None] = []
    seen: Counter[str] = Counter()
    for call in calls:
        alike = nameless.get(call.op_type, ())
        node = named.get(call.name) or (alike[seen[call.op_type] % len(alike)] if alike else None)
        seen[call.op_type] += call.name not in named
        found.append(node)
    return found


def _fits(call: _Event, node: Running) -> bool:
    return call.op_type == node.op_type and node.name in ("", call.name)


def _kernel_times(
    runs: Sequence[Sequence[_Event]], running: tuple[Running, ...], removed: tuple[ir.Node, ...]
) -> KernelTimes:
    """Return the means over the quicker half of the runs, so that one which something disturbed does not count."""
    table = _Table(running)
    counted = sorted((table.count(calls) for calls in runs), key=lambda run: sum(s.own for s in run[0].values()))
    kept = counted[: (len(counted) + 1) // 2]
    kernels = tuple(
        _kernel(position, found, [sums.get(position, _Sum()) for sums, _ in kept])
        for position, found in enumerate(table.kernels.values())
    )
    spans = tuple(sorted(kept[len(kept) // 2][1], key=lambda span: span.start))
    return KernelTimes(kernels, len(kept), True, spans, True, removed)


def _kernel(position: int, found: tuple[Running | None, _Event, int | None], sums: Sequence[_Sum]) -> Kernel:
    node, call, inside = found
    types = [name for shape in call.facts.get("input_type_shape", ()) for name in shape]
    sizes = [call.facts.get(name) for name in ("activation_size", "parameter_size", "output_size")]
    domain = node.domain if node is not None else ""
    return Kernel(
        call.name,
        f"{domain}.{call.op_type}" if domain else call.op_type,
        sum(s.own for s in sums) / len(sums) * _MICROSECOND,
        sum(s.calls for s in sums) / len(sums),
        node.nodes if node is not None else (),
        node.beside if node is not None else (),
        inside,
        call.facts.get("provider", ""),
        _DTYPES.get(types[0], types[0]) if types else "",
        sum(map(int, sizes)) if None not in sizes else None,  # type: ignore[arg-type]
    )
