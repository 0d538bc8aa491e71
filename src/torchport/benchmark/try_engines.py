"""tp.try_engines"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from torchport.benchmark import published
from torchport.benchmark.children import Candidate, Outcome, run_candidate
from torchport.benchmark.engine_table import EngineRow, EngineTable, OpsetRow
from torchport.benchmark.feeds import feeds_for
from torchport.benchmark.older_runtimes import environment_of
from torchport.benchmark.preparation import Common, Failure, check_seconds, model_file, settings_by_engine
from torchport.benchmark.reference import Reference, reference_of, torch_reference
from torchport.benchmark.torch_candidate import MODES
from torchport.comparison.compare import compare
from torchport.conversion.options import Progress
from torchport.engines.options import check_threads
from torchport.engines.registry import DEFAULT, check_engine, engine_names, find_engine, missing_engines
from torchport.errors import EngineMissingError, OpsetError, TorchportError
from torchport.files import onnx_files
from torchport.numerics.tolerance import Limits, limits_for
from torchport.opset.convert import SUPPORTED, convert
from torchport.results import Finding
from torchport.tensors import Array

_SEVERAL = 2  # engines that agree are more than one that differs


def try_engines(
    model: str | os.PathLike[str] | ir.Model,
    against: Any = None,
    *,
    engines: Sequence[str] | None = None,
    inputs: Any = None,
    at: Mapping[str, int] | None = None,
    threads: int | None = None,
    options: Mapping[str, Any] | None = None,
    opsets: bool = False,
    runtimes: Sequence[str] = (),
    libraries: Sequence[str | os.PathLike[str]] = (),
    seconds: float = 0.5,
    limit: float = 300.0,
    memory: int | None = None,
    seed: int = 0,
    trust: bool = False,
    progress: Progress | None = None,
) -> EngineTable:
    """Open a model in every engine and say which runs it right, how fast, and why the others do not.

    Each engine runs in a process of its own: one that crashes or runs out of memory does not stop the others.

    Args:
        model: an ONNX file or a model in memory.
        against: the PyTorch model whose answers are right, or its source, ``"model.py:Net"``. With a source, PyTorch
            stands in the table too, eager and compiled. Without, ONNX Runtime's answers are taken.
        engines: the engines to try; all that are here if None.
        inputs: a tuple in order, or a mapping by name. Made up from the model's shapes if None.
        at: sizes of dynamic dimensions to make inputs at, ``{"batch": 8}``.
        threads: for each engine to compute with.
        options: what only some engines take; each goes to the engines that have it. Without, an engine has a row for
            each of its devices or execution providers that is here.
        opsets: try every opset in which the model can be expressed.
        runtimes: older releases to try too, ``["onnxruntime==1.21.0"]``; each is installed once, in torchport's cache.
        libraries: operator libraries that the model needs, by path, or Python files that define operators.
        seconds: to measure each engine for.
        limit: the seconds that each engine may take in all.
        memory: the bytes of address space that each engine's process may take; None for no limit.
        seed: for weights that the PyTorch model draws. Inputs that are made up are the same each time.
        trust: open a PyTorch file that runs code when it is loaded.
        progress: called with one line at each step.

    Returns:
        The table. It is as long as it got where Ctrl-C ended it.

    Example:
        >>> print(tp.try_engines("model.onnx", "model.py:Net", at={"batch": 8}))
    """
    check_threads(threads)
    check_seconds(seconds, none=True)
    for name in engines or ():
        check_engine(name)
    settings = settings_by_engine(_ordered(engines), options or {})
    how = _How(seconds, limit, memory, threads, settings)
    common = Common.read(libraries, seed=seed, trust=trust)
    with contextlib.ExitStack() as stack:
        loaded = onnx_files.as_model(model)
        path = stack.enter_context(model_file(model, loaded))
        [feeds] = feeds_for(loaded, path, inputs, [at or {}], common)
        trying = _Trying(loaded, path, feeds, how, common, progress or (lambda text: None))
        pythons = {runtime: str(environment_of(runtime)) for runtime in runtimes}
        name = os.fspath(model) if isinstance(model, (str, os.PathLike)) else "the model"
        return trying.table(name, against, engines, pythons, opsets)


@dataclasses.dataclass(frozen=True)
class _How:
    """How engines are tried: the time and memory that each may take, its threads, and the settings by engine."""

    seconds: float
    limit: float
    memory: int | None
    threads: int | None
    settings: Mapping[str, Mapping[str, Any]]


# Rows


class _Trying:
    def __init__(
        self, model: ir.Model, path: str, feeds: dict[str, Array], how: _How, common: Common, say: Progress
    ) -> None:
        self._model, self._path, self._feeds = model, path, feeds
        self._how, self._common, self._say = how, common, say
        self._tolerances: Limits = limits_for([model], None)
        self._reference: Reference | None = None
        self._outputs: dict[str, Sequence[Array]] = {}  # of each engine that ran

    def table(
        self, name: str, against: Any, engines: Sequence[str] | None, pythons: Mapping[str, str], opsets: bool
    ) -> EngineTable:
        rows: list[EngineRow] = []
        findings: list[Finding] = []
        by_opset: list[OpsetRow] = []
        interrupted = False
        try:
            if against is not None:
                self._say("asking PyTorch")
                options: dict[str, Any] = {"seed": self._common.seed, "trust": self._common.trust}
                self._reference = torch_reference(against, self._feeds, self._model, self._tolerances, **options)
            candidates = list(self._candidates(engines, pythons))
            for candidate in [*candidates, *self._torch_candidates(against)]:
                self._say(f"trying {candidate.label}")
                rows.append(self._row(candidate))
            findings += self._outlier(rows)
            if engines is None:
                rows += [self._listed(missing, how) for missing, how in self._not_here().items()]
            for opset in SUPPORTED if opsets else ():
                self._say(f"trying opset {opset}")
                by_opset.append(self._opset(opset, candidates))
        except KeyboardInterrupt:
            interrupted = True
        shapes = {n: a.shape for n, a in self._feeds.items()}
        return EngineTable(
            name, self._reference_name, shapes, tuple(rows), tuple(by_opset), tuple(findings), interrupted
        )

    def _candidates(self, engines: Sequence[str] | None, pythons: Mapping[str, str]) -> Iterator[Candidate]:
        common = {**self._common.fields, "threads": self._how.threads}
        for name, settings in self._how.settings.items():
            yield Candidate(name, "engine", self._path, engine=name, settings=settings, **common)
            for device, more in _devices(name).items() if not settings else ():
                yield Candidate(f"{name} {device}", "engine", self._path, engine=name, settings=more, **common)
        for runtime, python in pythons.items():
            yield Candidate(runtime, "bare", self._path, python=python, **common)

    def _torch_candidates(self, against: Any) -> Iterator[Candidate]:
        """Give PyTorch's own candidates; a child process can open a source, and no model in memory."""
        for mode in MODES if isinstance(against, str) else ():
            yield Candidate(mode, "torch", against, mode=mode, threads=self._how.threads, **self._common.fields)

    def _run(self, candidate: Candidate, seconds: float) -> Outcome:
        return run_candidate(candidate, self._feeds, seconds=seconds, limit=self._how.limit, memory=self._how.memory)

    def _row(self, candidate: Candidate) -> EngineRow:
        outcome = self._run(candidate, self._how.seconds)
        facts = outcome.facts
        if outcome.outputs is None:
            return EngineRow(candidate.label, **Failure.of(facts, self._model).fields)
        if candidate.label == candidate.engine:
            self._outputs[candidate.label] = outcome.outputs
        if self._reference is None and candidate.kind == "engine":
            self._reference = reference_of(candidate.label, outcome.outputs, self._model, self._tolerances)
        row = EngineRow(
            candidate.label,
            "runs",
            facts["version"],
            load_seconds=facts["load_seconds"],
            latency_seconds=facts["latency_seconds"],
            memory=facts["memory"],
            findings=tuple(facts["findings"]),
        )
        return self._judged(row, outcome.outputs, candidate)

    def _judged(self, row: EngineRow, outputs: Sequence[Array], candidate: Candidate) -> EngineRow:
        """Hold a candidate's outputs against the reference."""
        own = self._reference is not None and self._reference.outputs is outputs
        if self._reference is None or (own and not self._reference.random):
            return row
        found = self._reference.judge(outputs)
        more: dict[str, Any] = self._diverging(candidate) if found.status == "wrong" else {}
        return dataclasses.replace(row, **found.fields, **more)

    def _outlier(self, rows: list[EngineRow]) -> Iterator[Finding]:
        """Say that several engines are against the default one, and where it differs from one that is right."""
        others = [row.engine for row in rows if row.engine in self._outputs and row.engine != DEFAULT]
        place = next((n for n, row in enumerate(rows) if row.engine == DEFAULT), None)
        if place is None:
            return
        right = [row.engine for row in rows if row.engine in others and row.status == "right"]
        if rows[place].status == "wrong" and right:
            where: dict[str, Any] = self._first_divergence(right[0], DEFAULT)
            rows[place] = dataclasses.replace(rows[place], **where)
            if len(right) >= _SEVERAL:
                yield Finding(f"{DEFAULT} alone differs: {_listed(right)} agree with {self._reference_name}")
        elif rows[place].status == "runs" and len(others) >= _SEVERAL and self._agree(others):
            message = f"{DEFAULT} alone differs: {_listed(others)} agree with each other"
            yield Finding(f"{message}; give --against model.py:Net, whose answers are right")

    @property
    def _reference_name(self) -> str:
        return self._reference.name if self._reference else ""

    def _agree(self, engines: Sequence[str]) -> bool:
        """Check that engines which differ from the reference give the same outputs."""
        first = reference_of(engines[0], self._outputs[engines[0]], self._model, self._tolerances)
        assert self._reference is not None
        return all(self._reference.judge(self._outputs[e]).status == "wrong" for e in engines) and all(
            first.judge(self._outputs[e]).status == "right" for e in engines
        )

    def _diverging(self, candidate: Candidate) -> dict[str, str]:
        """Find the first node at which an engine differs from the default one: fields of its row."""
        if candidate.engine == DEFAULT or candidate.label not in self._outputs:
            return {}
        return self._first_divergence(DEFAULT, candidate.engine)

    def _first_divergence(self, beside: str, engine: str) -> dict[str, str]:
        self._say(f"looking where {engine} differs from {beside}")
        pair = (beside, engine)
        try:
            found = compare(self._path, inputs=self._feeds, layers=True, engines=pair, libraries=self._common.libraries)
        except TorchportError as error:
            return {"first_divergence": f"could not be found: {error.what}"}
        assert isinstance(found, dict)
        place = found[engine].first_divergence
        if place is None:
            return {}
        return {
            "first_divergence": f"{place.operator} '{place.node}'",
            "node": place.node,
            "source": place.origin.source,
        }

    def _not_here(self) -> dict[str, str]:
        here, missing = engine_names(), missing_engines()
        return {name: missing.get(name, "") for name in published.lists() if name not in here}

    def _listed(self, engine: str, how: str) -> EngineRow:
        """Say what an engine's published list says."""
        reason, node, source = published.first_lack(self._model, engine)
        listed = published.lists()[engine]["list"]
        text = f"{reason}, by {listed}" if reason else f"every operator is in {listed}"
        return EngineRow(engine, "read, not run", reason=text, node=node, source=source, next_step=how)

    # Opsets

    def _opset(self, opset: int, candidates: Sequence[Candidate]) -> OpsetRow:
        try:
            converted = convert(self._model, opset)
        except OpsetError as error:
            return OpsetRow(opset, {}, ": ".join(filter(None, [error.what, ", ".join(error.blockers[:3])])))
        with tempfile.TemporaryDirectory(prefix="torchport-") as folder:
            path = str(onnx_files.save(converted, Path(folder) / "model.onnx", check=False))
            return OpsetRow(opset, {c.label: self._in_opset(dataclasses.replace(c, model=path)) for c in candidates})

    def _in_opset(self, candidate: Candidate) -> str:
        outcome = self._run(candidate, 0)
        if outcome.outputs is None:
            return Failure.of(outcome.facts, self._model).status
        if self._reference is None:
            return "runs"
        return self._reference.judge(outcome.outputs).status


def _ordered(engines: Sequence[str] | None) -> list[str]:
    """Return the engines that are asked for, or all that are here, the default one first."""
    return list(dict.fromkeys(engines or sorted(engine_names(), key=lambda name: name != DEFAULT)))


def _devices(engine: str) -> Mapping[str, Mapping[str, Any]]:
    try:
        return find_engine(engine).devices()
    except EngineMissingError:  # its row says why
        return {}


def _listed(names: Sequence[str]) -> str:
    """``a, b and c``"""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
