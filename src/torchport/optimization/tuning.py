"""tp.tune"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import onnx_ir as ir

from torchport.benchmark.bench_call import BenchModel, numbers, points_of
from torchport.benchmark.children import Candidate
from torchport.benchmark.preparation import Common
from torchport.benchmark.ratios import Ratio
from torchport.benchmark.rounds import Point
from torchport.conversion.options import Progress
from torchport.conversion.verify import is_onnx
from torchport.engines.registry import DEFAULT, REFERENCE, check_engine, engine_names
from torchport.engines.tuned import Tuned
from torchport.errors import InputError, OptionError
from torchport.machine import cpu_name, usable_cpus
from torchport.numerics.tolerance import limits_for
from torchport.optimization.accuracy import Limits
from torchport.optimization.agreement import EXACT, read_tolerance
from torchport.optimization.search_space import Choice, Variant, variants
from torchport.optimization.tuned_folder import TunedFolder, check_folder, file_bytes, key_of
from torchport.optimization.tuning_race import race
from torchport.optimization.tuning_result import Tuning, TuningRow
from torchport.optimization.tuning_samples import TuningSamples, made_up
from torchport.optimization.tuning_search import Budget, Search, frontier, incumbent
from torchport.optimization.tuning_turns import Conditions, Measured, Turns, candidate_for
from torchport.optimization.variants import VariantFiles
from torchport.results import Finding
from torchport.tensors import Array

Objective = Literal["latency", "throughput", "size", "memory"]
OBJECTIVES: tuple[Objective, ...] = ("latency", "throughput", "size", "memory")

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
_FINALISTS = 3
_AHEAD = 0.95  # of the score of the model as given: who is below wins without a race
_EXACT = 1e-10  # noise below it is float32's rounding
_MOST_OF = 0.9  # of the time of a process: for what ends by itself with the best so far
_NEAR = 1.12  # times the best score: candidates of the final race


def tune(
    model: Any,
    output: str | os.PathLike[str],
    *,
    tolerance: float | str | Mapping[str, Any] | None = None,
    data: Any = None,
    budget: float | str = 300.0,
    objective: Objective = "latency",
    engines: Sequence[str] | None = None,
    at: Mapping[str, int | Sequence[int]] | None = None,
    inputs: Any = None,
    libraries: Sequence[str | os.PathLike[str]] = (),
    memory: int | None = None,
    seed: int = 0,
    trust: bool = False,
    progress: Progress | None = None,
) -> Tuning:
    """Find the fastest way to run a model on this machine, and save it.

    Engines, variants of the model (optimized, in less precision), threads and options of the engines are measured in
    processes of their own beside the model as given, and their outputs are compared. The best so far is always in the
    folder; the same call goes on after it was killed.

    Args:
        model: an ONNX file or a model in memory. A PyTorch model is exported first: give `inputs` as for `export`.
        output: the folder for the model and ``tuned.json``; `tp.session` opens it.
        tolerance: how far outputs may be off, as `max_drop` of `tp.quantize`: 0.01, ``"1%"``, ``{"top1": "1%"}``,
            ``{"sqnr": 30}``; None for the limits of a float32 proof.
        data: samples for calibration and for comparing outputs: a folder of .npz files or an iterable;
            made up if None.
        budget: seconds, or ``"5m"``.
        objective: ``"latency"``, ``"throughput"``, ``"size"`` or ``"memory"``.
        engines: that take part; all that are installed if None.
        at: sizes of dynamic dimensions to measure at, ``{"batch": [1, 8]}``; the mean over all combinations counts.
        inputs: to measure the time with, a tuple or a mapping by name; the first sample, or made up, if None.
        libraries: operator libraries that the model needs, by path, or Python files that define operators.
        memory: the bytes of address space that each process may take; None for no limit.
        seed: of made-up inputs and of the order of turns.
        trust: open a PyTorch file that runs code when it is loaded.
        progress: called with one line at each step.

    Returns:
        Every candidate with its figures, and the one that was saved. Ctrl-C ends the search with the best so far.

    Example:
        >>> tp.tune("model.onnx", "best/", tolerance="1%", data="samples/", budget="5m")
        >>> session = tp.session("best/")
    """
    allowed = read_tolerance(tolerance)
    asked = Asked(allowed, seconds_of(budget), _objective(objective), _engines(engines), seed, memory)
    check_folder(Path(output))
    say = progress or (lambda text: None)
    common = Common.read(libraries, seed=seed, trust=trust)
    with contextlib.ExitStack() as stack:
        if not is_onnx(model):
            model, inputs = _exported(model, inputs, stack, seed=seed, trust=trust, say=say)
        opened = BenchModel.open(model, stack)
        sizes = {name: numbers(size) for name, size in (at or {}).items()}
        options = {**dataclasses.asdict(asked), "budget": None, "at": sizes, "data": _signature(data), **_machine()}
        key = key_of(Path(opened.path), options)
        folder = TunedFolder(output, key)
        samples = TuningSamples.read(data, opened, folder)
        feeds = inputs if inputs is not None or not samples.held_out or at else samples.held_out[0][1]
        points = points_of([opened], feeds, at or {}, common)
        compared = [*samples.held_out, *made_up(points, seed, count=samples.made_up)]
        return _Tuning(opened, folder, points, compared, samples, common, asked, say).run()


@dataclasses.dataclass(frozen=True)
class Asked:
    """What the caller wants."""

    tolerance: Limits | None
    budget: float
    objective: Objective
    engines: tuple[str, ...]
    seed: int
    memory: int | None

    @property
    def lossy(self) -> bool:
        return self.tolerance is not None

    @property
    def limits(self) -> dict[str, float]:
        """Return the tolerance as `tp.quantize` takes it."""
        allowed = self.tolerance or Limits()
        drops = {"cosine": allowed.cosine, "top1": allowed.top1}
        found = {kind: 1 - least for kind, least in drops.items() if least is not None}
        return {**found, **({"sqnr": allowed.sqnr} if allowed.sqnr is not None else {})}

    @property
    def clients(self) -> int:
        return usable_cpus() if self.objective == "throughput" else 1


def seconds_of(budget: float | str) -> float:
    """Return the seconds of a budget: 300, ``90s``, ``5m``, ``1h``.

    Raises:
        OptionError: it is no length of time.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*", str(budget)) if not isinstance(budget, bool) else None
    seconds = float(found[1]) * _UNITS[found[2]] if found else math.nan
    if not 0 < seconds < math.inf:
        raise OptionError(
            f"{budget!r} is no length of time",
            where=f"--budget {budget}, in Python budget={budget!r}",
            next_step="give seconds, 90s, 5m or 1h",
        )
    return seconds


def _objective(given: str) -> Objective:
    for known in OBJECTIVES:
        if given == known:
            return known
    raise OptionError(f"there is no objective '{given}'", next_step=f"use one of: {', '.join(OBJECTIVES)}")


def _engines(given: Sequence[str] | None) -> tuple[str, ...]:
    """Return the engines, the default one first: the model as given runs there."""
    names = list(given) if given is not None else [name for name in engine_names() if name != REFERENCE]
    for name in names:
        check_engine(name)
    if not names:
        raise OptionError("no engine is named", next_step="name one, or leave it to the default")
    return (DEFAULT, *dict.fromkeys(name for name in names if name != DEFAULT))


def _machine() -> dict[str, Any]:
    return {"cpu": cpu_name(), "cpus": usable_cpus()}


def _signature(data: Any) -> Any:
    """Return what tells one calibration set from another, as far as it can be read without its arrays."""
    if not isinstance(data, (str, os.PathLike)):
        return None if data is None else type(data).__name__
    path = Path(data)
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.is_file()]


def _exported(
    model: Any, inputs: Any, stack: contextlib.ExitStack, *, seed: int, trust: bool, say: Progress
) -> tuple[ir.Model, Any]:
    """Export a PyTorch model, given itself or by its source. Its example inputs are what the time is measured with."""
    from torchport.conversion.export import export

    source, example = model, inputs
    if isinstance(model, (str, os.PathLike)):
        from torchport.benchmark.torch_candidate import loaded_model

        source = loaded_model(os.fspath(model), seed, trust=trust)
        example = inputs if inputs is not None else _example_of(os.fspath(model), trust=trust)
    if example is None and not hasattr(source, "example_inputs"):
        raise InputError(
            "no example inputs: a PyTorch model is exported before it is tuned",
            next_step="give inputs (--input x=float32[1,3,224,224]), or write example_inputs() beside the model",
        )
    say("exporting")
    given: dict[str, Any] = {"kwargs": dict(example)} if isinstance(example, Mapping) else {"args": example or ()}
    exported = export(source, given.get("args", ()), kwargs=given.get("kwargs"), progress=say)
    return exported.model, None


def _example_of(source: str, *, trust: bool) -> Any:
    from torchport.capture.sources import load_source

    loaded = load_source(source, trust=trust)
    return None if loaded.example_inputs is None else loaded.example_inputs()


# The search


class _Tuning:
    def __init__(
        self,
        model: BenchModel,
        folder: TunedFolder,
        points: Sequence[Point],
        compared: Sequence[tuple[str, Mapping[str, Array]]],
        samples: TuningSamples,
        common: Common,
        asked: Asked,
        say: Progress,
    ) -> None:
        self._model, self._folder, self._points = model, folder, points
        self._samples, self._common, self._asked, self._say = samples, common, asked, say
        self._names = tuple(model.outputs)
        self._limits = limits_for([model.graph], None)
        self._conditions = Conditions(
            points, compared, self._names, self._limits, asked.tolerance, asked.clients, asked.memory
        )
        self._files = VariantFiles(Path(model.path), folder, common=common.fields, memory=asked.memory)
        self._budget = Budget(asked.budget)
        self._paths: dict[str, str] = {}
        self._sizes: dict[str, int] = {}
        self._proven: dict[Choice, str] = {}
        self._given = incumbent(DEFAULT)
        self._ratio: Ratio | None = None

    def run(self) -> Tuning:
        self._say("measuring the model as given")
        with Turns(self._candidate(self._given, self._model.path), self._conditions) as turns:
            search = self._search(turns)
            search.take(self._given, turns.incumbent)
            self._save(search, self._given)
            best, interrupted = self._given, False
            try:
                search.run()
            except KeyboardInterrupt:
                interrupted = True
        try:
            best = self._race(search) if not interrupted else self._best_proven(search)
        except KeyboardInterrupt:
            interrupted = True
        return self._result(search, best, interrupted=interrupted)

    def _search(self, turns: Turns) -> Search:
        def measure(choice: Choice, path: str, best: float, seconds: float) -> Measured:
            self._paths[choice.variant.name + choice.variant.engine] = path
            known = self._folder.measured.get(choice.label)
            if known is not None:
                return known
            self._say(f"measuring {choice.label}")
            return turns.measure(self._candidate(choice, path), best=best, seconds=seconds)

        asked = self._asked
        return Search(
            asked.engines,
            variants(asked.engines, lossy=asked.lossy),
            cpus=usable_cpus(),
            lossy=asked.lossy,
            budget=self._budget,
            make=self._make,
            measure=measure,
            score=self._score,
            note=self._note,
            tries_options=asked.objective != "size",
        )

    def _note(self, choice: Choice, found: Measured) -> None:
        if found.ratio is not None or (found.dropped and not found.dropped.startswith("not tried")):
            self._folder.note(choice.label, found)

    def _make(self, variant: Variant, seconds: float) -> tuple[str, str]:
        if variant.verb:
            self._say(f"making {variant.name} for {variant.engine or 'every engine'}")
        options: dict[str, Any] = {}
        if variant.verb == "quantize":
            data = self._samples.calibration
            options = {"data": data and str(data), "max_drop": self._asked.limits, "limit": _MOST_OF * seconds}
        made = self._files.path(variant, seconds=seconds, options=options)
        return made.path, made.reason

    def _candidate(self, choice: Choice, path: str) -> Candidate:
        return candidate_for(choice.label, path, choice.engine, choice.trial, self._common.fields)

    def _path(self, choice: Choice) -> str:
        return self._paths.get(choice.variant.name + choice.variant.engine, self._model.path)

    def _size(self, choice: Choice) -> int:
        path = self._path(choice)
        if path not in self._sizes:
            self._sizes[path] = file_bytes(Path(path))
        return self._sizes[path]

    def _score(self, choice: Choice, found: Measured) -> float:
        """Return what is made small. Where size or memory counts, time decides between equals."""
        ratio = found.ratio if found.ratio is not None else math.inf
        if self._asked.objective == "size":
            return self._size(choice) * (1 + 1e-6 * min(ratio, 1e3))
        if self._asked.objective == "memory":
            return (found.memory or math.inf) * (1 + 1e-6 * min(ratio, 1e3))
        return ratio

    # The best

    def _race(self, search: Search) -> Choice:
        """Measure the best beside the model as given until the difference is beyond the noise; the best proven wins."""
        finalists = self._finalists(search)
        if self._asked.objective in ("size", "memory") or not finalists:
            return self._settled(search, finalists)
        self._say(f"final race of {len(finalists)} with the model as given")
        runners = [self._candidate(choice, self._path(choice)) for choice in (self._given, *finalists)]
        won = race(runners, self._conditions, seconds=self._budget.left, seed=self._asked.seed)
        if won is None:
            return self._settled(search, finalists)
        self._ratio = won.ratio
        return self._given if won.ratio is None else finalists[won.place - 1]

    def _finalists(self, search: Search) -> list[Choice]:
        """Return the best that are proven, and were measured faster than the model as given."""
        limit = search.score(self._given)
        finalists: list[Choice] = []
        for choice in search.ranked():
            if len(finalists) == _FINALISTS or search.score(choice) >= limit:
                break
            if finalists and search.score(choice) > _NEAR * search.score(finalists[0]):
                break
            if self._is_proven(search, choice):
                finalists.append(choice)
        return finalists

    def _is_proven(self, search: Search, choice: Choice) -> bool:
        """Prove a choice at other sizes and values. One in less precision was held within the tolerance."""
        if choice.lossy or choice == self._given:
            return True
        self._say(f"proving {choice.label}")
        reason = self._files.proof(choice, self._path(choice), seconds=max(10.0, self._budget.step))
        if reason:
            search.take(choice, dataclasses.replace(search.found[choice], dropped=f"not proven: {reason}"))
        return not reason

    def _settled(self, search: Search, finalists: Sequence[Choice]) -> Choice:
        """Return the best without a race: it has to be ahead of the model as given by more than the usual noise."""
        if not finalists or search.score(finalists[0]) > _AHEAD * search.score(self._given):
            return self._given
        return finalists[0]

    def _best_proven(self, search: Search) -> Choice:
        return self._settled(search, self._finalists(search))

    def _save(self, search: Search, choice: Choice) -> None:
        found = search.found[choice]
        name = re.sub(r"\W+", "_", choice.variant.name)
        tuned = Tuned(
            f"{name}.onnx",
            choice.engine,
            choice.trial.threads,
            choice.trial.settings,
            choice.variant.name,
            choice.lossy,
            cpu_name(),
            usable_cpus(),
            found.version,
            self._asked.objective,
            self._ratio.value if self._ratio else 1 / found.ratio if found.ratio else 1.0,
            found.noise or 0.0,
        )
        self._folder.save(Path(self._path(choice)), tuned)

    # The result

    def _result(self, search: Search, best: Choice, *, interrupted: bool) -> Tuning:
        self._save(search, best)
        running = search.ranked()
        front = set(frontier({c: self._figures(c, m) for c, m in search.found.items() if not m.dropped}))
        dropped = [c for c, m in search.found.items() if m.dropped]
        rows = [self._row(c, search.found[c], best, front) for c in [*running, *dropped]]
        if not interrupted:
            self._folder.finish()
        found = search.found[best]
        speedup = self._ratio.value if self._ratio else 1 / found.ratio if found.ratio else 1.0
        model = next(path.name for path in self._folder.path.glob("*.onnx"))
        return Tuning(
            str(self._folder.path),
            str(self._folder.path / model),
            best.label,
            tuple(rows),
            self._asked.objective,
            EXACT if self._asked.tolerance is None else str(self._asked.tolerance),
            1.0 if best == self._given else speedup,
            self._ratio.low if self._ratio else None,
            self._ratio.high if self._ratio else None,
            self._asked.budget - self._budget.left,
            self._folder.resumed,
            tuple(self._findings()),
            interrupted,
        )

    def _figures(self, choice: Choice, found: Measured) -> tuple[float | None, ...]:
        """Return time, noise, size and memory in steps: what differs by the noise alone is equal."""
        ratio, noise, size, memory = found.ratio, found.noise or 0.0, self._size(choice), found.memory
        return (_step(ratio, 1.03), 0.0 if noise < _EXACT else _step(noise, 2.0), float(size), _step(memory, 1.3))

    def _row(self, choice: Choice, found: Measured, best: Choice, front: set[Choice]) -> TuningRow:
        status: Literal["best", "frontier", "behind", "dropped"]
        status = (
            "best" if choice == best else "dropped" if found.dropped else "frontier" if choice in front else "behind"
        )
        return TuningRow(
            choice.label,
            choice.engine,
            choice.variant.name,
            choice.trial.threads,
            choice.trial.settings,
            status,
            found.ratio,
            found.seconds,
            found.noise,
            found.max_abs,
            self._size(choice) if not found.dropped else None,
            found.memory,
            found.dropped,
        )

    def _findings(self) -> Iterable[Finding]:
        if self._asked.lossy and self._samples.calibration is None:
            text = "the error was measured on made-up inputs; on yours it may be larger: give samples (--data, data=)"
            yield Finding(text)
        yield from self._samples.findings
        if self._budget.left < 0:
            yield Finding(f"the budget of {self._asked.budget:g} s was too small for a whole search")


def _step(value: float | None, factor: float) -> float | None:
    """Return a figure rounded to a power of a factor."""
    return factor ** round(math.log(value, factor)) if value else value
