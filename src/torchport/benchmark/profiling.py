"""tp.profile"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from torchport.benchmark.children import Candidate, run_candidate
from torchport.benchmark.chrome_trace import write_trace
from torchport.benchmark.command_process import CommandError
from torchport.benchmark.feeds import at_sizes, given_feeds, inputs_of, tried_feeds
from torchport.benchmark.kernel_costs import Costs, Tables, sizes_in, without_counting
from torchport.benchmark.machine_limits import machine_limits, raised_limits
from torchport.benchmark.preparation import check_seconds
from torchport.benchmark.profile_advice import Measured, advice_for
from torchport.benchmark.profile_report import Limits, Profile
from torchport.benchmark.thread_scaling import times_by_threads
from torchport.engines.custom_operators import library_paths
from torchport.engines.options import check_threads, open_options
from torchport.engines.profiling import KernelTimes, Profiler, check_profiles, open_profiler
from torchport.engines.protocol import OpenOptions, Runner
from torchport.engines.registry import DEFAULT, faults_of, find_engine
from torchport.engines.session import Session
from torchport.errors import EngineError, OptionError, TorchportError
from torchport.files import onnx_files
from torchport.files.filesystem import check_target
from torchport.inputs.create import accepted
from torchport.irtools.dims import roots_in
from torchport.irtools.metadata import read_bounds
from torchport.irtools.names import name_of
from torchport.irtools.traversal import inlined
from torchport.results import Finding
from torchport.tensors import Array

Progress = Callable[[str], None]
_ROUNDS = 4  # with and without counters in turn, so that what else the machine does hits both alike
_WARM_UP = 3
_MOST_RUNS = 200  # of a small model in one round
_MOST_CALLS = 30_000  # of kernels in a profile: an engine writes about a kilobyte for each
_PATIENCE = 300.0  # seconds that a process may take to run the model once
_PAUSE = 0.02  # seconds in which the threads of the other session stop spinning
_LARGE = 1 << 30  # bytes of weights: such a model is not held twice


def profile(
    model: str | os.PathLike[str] | ir.Model,
    *,
    engine: str = DEFAULT,
    inputs: Any = None,
    at: Mapping[str, int] | None = None,
    threads: int | None = None,
    options: Mapping[str, Any] | None = None,
    libraries: Sequence[str | os.PathLike[str]] = (),
    seconds: float = 2.0,
    trace: str | os.PathLike[str] | None = None,
    compare_threads: bool = True,
    progress: Progress | None = None,
) -> Profile:
    """Say where the time of a model goes: by node, operator, module and Python line, and what to do about it.

    Args:
        model: an ONNX file or a model in memory.
        engine: what runs it; one that counts the time of its kernels.
        inputs: a tuple in order, or a mapping by name. Made up from the model's shapes if None.
        at: sizes of dynamic dimensions to make inputs at, ``{"batch": 8}``.
        threads: the number of threads to compute with; the engine's own choice if None.
        options: what only this engine takes; docs/engines.md lists them.
        libraries: operator libraries that the model needs, by path.
        seconds: to measure for. The limits of the machine take some seconds more, once.
        trace: a file for the calls of one run, as a Chrome trace.
        compare_threads: measure the model with one thread too.
        progress: called with one line at each step.

    Example:
        >>> found = tp.profile("model.onnx", at={"batch": 8})
        >>> print(found)
        >>> found.nodes[0].source
        'model.py:31'
    """
    say = progress or (lambda text: None)
    check_threads(threads)
    check_seconds(seconds)
    check_profiles(engine)
    if "profile" in (options or {}):  # before anything is opened with it: ONNX Runtime would write a file
        raise OptionError(
            "the engine's own profile is what torchport reads here",
            where="--option profile=...",
            next_step="leave it out; --trace writes a file that a browser shows",
        )
    if trace is not None:
        check_target(trace)
    checked = open_options(engine, libraries=library_paths(libraries), threads=threads, settings=options)
    with contextlib.ExitStack() as stack:
        loaded = inlined(onnx_files.as_model(model))
        path = stack.enter_context(_file(model, loaded))
        say(f"opening the model in {engine}")
        candidate = _candidate(path, engine, checked)
        work = _Work(loaded, path, engine, checked, say)
        feeds = _feeds(candidate, loaded, work, inputs, at or {})
        say("measuring")
        measured = work.measured(feeds, seconds)
        limits, trouble = work.limits()
        measured = measured.without_counting(limits.call_overhead if limits is not None else 0.0)
        name = os.fspath(model) if isinstance(model, (str, os.PathLike)) else "the model"
        found = work.profile(name, feeds, measured, limits)
        if limits is not None and _is_beyond(found):
            limits, trouble = work.limits(again=True)
            found = work.profile(name, feeds, measured, limits)
        if limits is not None and _is_beyond(found):
            limits = work.raised(limits, found)
            found = work.profile(name, feeds, measured, limits)
        by_threads: Mapping[int | None, tuple[float, ...]] = {}
        if compare_threads:
            by_threads = times_by_threads(candidate, feeds, measured.run_seconds, say)
        advice = advice_for(work.for_advice(measured, feeds, limits, by_threads))
        found = dataclasses.replace(found, advice=advice, findings=(*found.findings, *trouble))
        if trace is not None:
            write_trace(Path(trace), found, measured.times)
        return found


def _is_beyond(found: Profile) -> bool:
    return any(max(node.arithmetic or 0.0, node.memory or 0.0) > 1.0 for node in found.nodes)


@contextlib.contextmanager
def _file(model: Any, loaded: ir.Model) -> Iterator[Path]:
    """Give the path of what is run; a model in memory, or one whose functions were written out, is saved for it."""
    if isinstance(model, (str, os.PathLike)) and not onnx_files.as_model(model).functions:
        yield Path(model).resolve()
        return
    with tempfile.TemporaryDirectory(prefix="torchport-") as folder:
        yield Path(onnx_files.save(loaded, Path(folder) / "model.onnx", check=False))


def _candidate(path: Path, engine: str, options: OpenOptions) -> Candidate:
    """Return the model as another process opens it."""
    libraries = tuple(str(Path(file).resolve()) for file in options.libraries)
    settings = dict(options.settings)
    return Candidate(
        engine, "engine", str(path), engine, threads=options.threads, settings=settings, libraries=libraries
    )


def _feeds(candidate: Candidate, model: ir.Model, work: _Work, inputs: Any, at: Mapping[str, int]) -> dict[str, Array]:
    """Return the inputs that were given, once they fit, or some that the model takes.

    A process of its own tries them first: a model that crashes the engine, or hangs it, ends that one. It cannot open a
    model whose operators are defined in this process; that one is tried here.
    """
    infos, roots = inputs_of(model), roots_in(model)
    if inputs is not None and at:
        raise OptionError("inputs are given, and sizes to make some at", next_step="leave --at or --input out")
    given = None if inputs is None else given_feeds(inputs, infos, read_bounds(model.metadata_props))
    try:
        if given is None:
            return tried_feeds(candidate, [at_sizes(infos, at, model)], roots, limit=_PATIENCE)[0]
        facts = run_candidate(candidate, given, seconds=0, limit=_PATIENCE).facts
    except CommandError as error:
        facts = error.facts
    if facts.get("refused") == "died":
        raise EngineError(f"{candidate.engine} cannot run the model: {facts['reason']}")
    if given is not None:
        return given
    session = Session(work.opened(), candidate.engine)
    with faults_of(candidate.engine):
        arrays = accepted(at_sizes(infos, at, model), lambda arrays: session(*arrays), roots)
    return {info.name: array for info, array in zip(infos, arrays, strict=True)}


@dataclasses.dataclass(frozen=True)
class _Measured:
    """The times of a model: of a run without counters, of one with, and of its kernels."""

    run_seconds: float
    profiled_seconds: float
    times: KernelTimes
    in_python: tuple[str, ...]
    findings: tuple[Finding, ...]

    def without_counting(self, call_overhead: float) -> _Measured:
        """Return these times with the kernels' as they are in a run that does not count."""
        times = without_counting(self.times, call_overhead, self.profiled_seconds, self.run_seconds)
        return dataclasses.replace(self, times=times)


class _Work:
    """A model in an engine, measured step by step."""

    def __init__(
        self, model: ir.Model, path: Path, engine: str, options: OpenOptions, say: Callable[[str], None]
    ) -> None:
        self._model, self._path, self._engine, self._options, self._say = model, path, engine, options, say
        self._plain: Runner | None = None

    def opened(self) -> Runner:
        """Return the model without counters, opened once."""
        if self._plain is None:
            self._plain = find_engine(self._engine).open(self._path, self._options)
        return self._plain

    def measured(self, feeds: Mapping[str, Array], seconds: float) -> _Measured:
        """Measure runs with and without counters in turn; one after the other where two sessions cannot stand."""
        with faults_of(self._engine):
            one = _warmed(lambda: self.opened().run(feeds))
            in_python, findings = self.opened().in_python, self.opened().findings
            alone = bool(in_python) or onnx_files.weight_bytes(self._model) > _LARGE
            rounds = 1 if alone else _ROUNDS
            runs = self._runs(one, rounds, seconds)
            without: list[float] = []
            if alone:
                without = _timed(lambda: self.opened().run(feeds), runs)
                self._plain = None
            profiler = open_profiler(self._engine, self._path, self._model, self._options)
            try:
                with_counters = self._in_turn(profiler, self._plain, feeds, (rounds, runs), without)
                times = profiler.times()
            finally:
                profiler.close()
        half = times.quickest
        return _Measured(_mean(without, half), _mean(with_counters, half), times, in_python, findings)

    def _runs(self, one: float, rounds: int, seconds: float) -> int:
        """Return how often to run a model in one round, where a run takes `one` seconds."""
        kernels = max(sum(1 for _ in self._model.graph.all_nodes()), 1)
        most = min(_MOST_RUNS, max(_MOST_CALLS // kernels // rounds, 1))
        return max(min(int(seconds / 2 / rounds / max(one, 1e-6)), most), 1 if one > 1 else 3)

    def _in_turn(
        self,
        profiler: Profiler,
        plain: Runner | None,
        feeds: Mapping[str, Array],
        counts: tuple[int, int],
        without: list[float],
    ) -> list[float]:
        rounds, runs = counts
        found: list[float] = []
        _warmed(lambda: profiler.run(feeds))
        profiler.warm()
        measured: list[tuple[list[float], Callable[[], Any]]] = [(found, lambda: profiler.run(feeds))]
        if plain is not None:
            measured.append((without, lambda: plain.run(feeds)))
        for _ in range(rounds):
            for times, run in measured:
                time.sleep(_PAUSE)
                times += _timed(run, runs)
            measured.reverse()  # neither is always the second
        return found

    def limits(self, *, again: bool = False) -> tuple[Limits | None, tuple[Finding, ...]]:
        """Return the machine's limits; None, and why, where they cannot be measured."""
        options = dataclasses.replace(self._options, libraries=())
        try:
            return machine_limits(self._engine, options, self._say, again=again), ()
        except TorchportError as error:
            return None, (Finding(f"the limits of this machine could not be measured: {error.what}"),)

    def raised(self, limits: Limits, found: Profile) -> Limits:
        """Return limits that the model keeps: what it reaches is no limit."""
        return raised_limits(self._engine, dataclasses.replace(self._options, libraries=()), limits, found.nodes)

    def profile(self, name: str, feeds: Mapping[str, Array], measured: _Measured, limits: Limits | None) -> Profile:
        times = measured.times
        parts = Costs(self._model, sizes_in(self._model, feeds), limits).parts(times)
        tables = Tables(times, parts, measured.run_seconds, measured.in_python)
        return Profile(
            name,
            self._engine,
            find_engine(self._engine).capabilities().version,
            {given: array.shape for given, array in feeds.items()},
            self._options.threads,
            measured.run_seconds,
            measured.profiled_seconds,
            times.seconds,
            max(measured.run_seconds - times.seconds, 0.0),
            times.runs,
            tables.nodes(),
            tables.operators(),
            tables.modules(),
            tables.lines(),
            tuple(name_of(node) for node in times.removed),
            limits,
            (),
            (*measured.findings, *_notes(measured)),
        )

    def for_advice(
        self,
        measured: _Measured,
        feeds: Mapping[str, Array],
        limits: Limits | None,
        by_threads: Mapping[int | None, tuple[float, ...]],
    ) -> Measured:
        costs = Costs(self._model, sizes_in(self._model, feeds), limits)
        return Measured(
            self._model,
            measured.times,
            measured.run_seconds,
            max(measured.run_seconds - measured.times.seconds, 0.0),
            costs.memory_seconds,
            by_threads,
            self._options.threads,
        )


def _notes(measured: _Measured) -> Iterator[Finding]:
    for name in measured.in_python:
        yield Finding(f"PyTorch runs {name}, as the engine has no kernel; its time is not the one it would have there")
    if measured.times.seconds > 1.02 * measured.run_seconds:
        more = measured.times.seconds / measured.run_seconds - 1
        yield Finding(
            f"the kernels add up to {more:.0%} more than a run: the machine was busy, or they run side by side"
        )
    if not measured.times.kernels:
        yield Finding("the engine runs no kernel: every output is a constant or an input")


def _warmed(run: Callable[[], Any]) -> float:
    """Return the seconds of a run that is not the first; of a slow model there is only that one."""
    took = 0.0
    for _ in range(_WARM_UP):
        start = time.perf_counter()
        run()
        took = time.perf_counter() - start
        if took > 1.0:
            break
    return took


def _timed(run: Callable[[], Any], runs: int) -> list[float]:
    found: list[float] = []
    for _ in range(runs):
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return found


def _mean(seconds: Sequence[float], quickest: bool) -> float:
    """Return the mean, of the quicker half if the kernels' times are of that half too."""
    kept = sorted(seconds)[: (len(seconds) + 1) // 2] if quickest else seconds
    return sum(kept) / len(kept)
