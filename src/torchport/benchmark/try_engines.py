"""tp.try_engines"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from torchport.benchmark import published
from torchport.benchmark.children import Candidate, Outcome, run_candidate
from torchport.benchmark.engine_table import EngineRow, EngineTable, OpsetRow
from torchport.benchmark.older_runtimes import environment_of
from torchport.benchmark.torch_candidate import MODES
from torchport.capture.sources import import_file
from torchport.comparison.compare import compare
from torchport.comparison.sides import TorchSide
from torchport.conversion.options import Progress
from torchport.engines.custom_operators import library_paths
from torchport.engines.options import check_threads
from torchport.engines.registry import DEFAULT, check_engine, engine_names, missing_engines
from torchport.engines.session import open_session
from torchport.errors import EngineError, InputError, OpsetError, OptionError, TorchportError, did_you_mean
from torchport.files import onnx_files
from torchport.inputs.create import accepted, made_up
from torchport.inputs.samples import Sample
from torchport.irtools.dims import evaluated, names_in, roots_in
from torchport.irtools.metadata import find_origin, read_bounds
from torchport.irtools.types import tensor_infos
from torchport.numerics.error_metrics import Figures, measure
from torchport.numerics.tolerance import Limits, limits_for
from torchport.opset.convert import SUPPORTED, convert
from torchport.results import TensorInfo
from torchport.tensors import Array, to_numpy


def try_engines(
    model: str | os.PathLike[str] | ir.Model,
    against: Any = None,
    *,
    engines: Sequence[str] | None = None,
    inputs: Any = None,
    at: Mapping[str, int] | None = None,
    threads: int | None = None,
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
        opsets: try every opset in which the model can be expressed.
        runtimes: older releases to try too, ``["onnxruntime==1.21.0"]``; each is installed once, in torchport's cache.
        libraries: operator libraries that the model needs, by path, or Python files that define operators.
        seconds: to measure each engine for.
        limit: the seconds that each engine may take in all.
        memory: the bytes of address space that each engine's process may take; None for no limit.
        seed: for inputs that are made up and weights that the PyTorch model draws.
        trust: open a PyTorch file that runs code when it is loaded.
        progress: called with one line at each step.

    Returns:
        The table. It is as long as it got where Ctrl-C ended it.

    Example:
        >>> print(tp.try_engines("model.onnx", "model.py:Net", at={"batch": 8}))
    """
    check_threads(threads)
    for name in engines or ():
        check_engine(name)
    operators = [Path(file).resolve() for file in libraries if str(file).endswith(".py")]
    for file in operators:
        import_file(file)
    paths = tuple(str(p.resolve()) for p in library_paths([p for p in libraries if not str(p).endswith(".py")]))
    limits = _Limits(seconds, limit, memory)
    common = _Common(threads, paths, tuple(map(str, operators)), seed, trust)
    with contextlib.ExitStack() as stack:
        loaded = onnx_files.as_model(model)
        path = stack.enter_context(_file(model, loaded))
        feeds = _feeds(loaded, path, inputs, at or {}, paths)
        trying = _Trying(loaded, path, feeds, limits, common, progress or (lambda text: None))
        pythons = {runtime: str(environment_of(runtime)) for runtime in runtimes}
        name = os.fspath(model) if isinstance(model, (str, os.PathLike)) else "the model"
        return trying.table(name, against, engines, pythons, opsets)


@dataclasses.dataclass(frozen=True)
class _Limits:
    seconds: float
    limit: float
    memory: int | None


@dataclasses.dataclass(frozen=True)
class _Common:
    threads: int | None
    libraries: tuple[str, ...]
    operators: tuple[str, ...]
    seed: int
    trust: bool


@contextlib.contextmanager
def _file(model: Any, loaded: ir.Model) -> Iterator[str]:
    """Give the path of a model; one in memory is written for the child processes to read."""
    if isinstance(model, (str, os.PathLike)):
        yield str(Path(model).resolve())
        return
    with tempfile.TemporaryDirectory(prefix="torchport-") as folder:
        yield str(onnx_files.save(loaded, Path(folder) / "model.onnx", check=False))


# Inputs


def _feeds(
    model: ir.Model, path: str, inputs: Any, at: Mapping[str, int], libraries: Sequence[str]
) -> dict[str, Array]:
    infos = tensor_infos(v for v in model.graph.inputs if not v.is_initializer())
    if inputs is not None:
        if at:
            raise OptionError("inputs are given, and sizes to make some at", next_step="leave --at or --input out")
        return _by_name(inputs, infos)
    sized = at_sizes(infos, at, model)
    roots = roots_in(model)
    try:
        session = open_session(path, DEFAULT, libraries=libraries)
    except EngineError:  # its row will say why; another engine may run the model
        arrays = made_up(sized, roots=roots)
    else:
        arrays = accepted(sized, lambda given: session(*given), roots)
    return {info.name: array for info, array in zip(infos, arrays, strict=True)}


def _by_name(inputs: Any, infos: Sequence[TensorInfo]) -> dict[str, Array]:
    given = inputs if isinstance(inputs, Mapping) else dict(zip([i.name for i in infos], _tuple(inputs), strict=False))
    if set(given) != {info.name for info in infos}:
        raise InputError(
            f"the inputs given are {', '.join(given) or 'none'}",
            where=f"the model takes {', '.join(map(str, infos))}",
            next_step="give each input of the model",
        )
    return {n: to_numpy(v) if hasattr(v, "detach") else np.asarray(v) for n, v in given.items()}


def _tuple(inputs: Any) -> tuple[Any, ...]:
    return tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)


def at_sizes(infos: Sequence[TensorInfo], at: Mapping[str, int], model: ir.Model) -> list[TensorInfo]:
    """Return the inputs with their dynamic dimensions at the sizes that the user names.

    Raises:
        OptionError: there is no such dimension, or it cannot have that size.
    """
    texts = [dim for info in infos for dim in info.shape or () if isinstance(dim, str)]
    known = {name for text in texts for name in (names_in(text) or {text})} | set(texts)
    bounds = read_bounds(model.metadata_props)
    for name, size in at.items():
        if name not in known:
            fixed = "every dimension of the model is fixed" if not known else f"it has {', '.join(sorted(known))}"
            raise OptionError(
                f"the model has no dimension '{name}'",
                where=f"--at {name}={size}; {', '.join(map(str, infos))}",
                next_step=did_you_mean(name, known, fixed, most=1),
            )
        if size < 0 or (name in bounds and not bounds[name].allows(size)):
            raise OptionError(
                f"dimension '{name}' cannot be {size}"
                + (f": the model was exported for {name} {bounds[name]}" if name in bounds else ""),
                where=f"--at {name}={size}",
                next_step="give a size that the model is good for",
            )
    return [dataclasses.replace(info, shape=_sized(info.shape, at)) for info in infos]


def _sized(shape: tuple[int | str | None, ...] | None, at: Mapping[str, int]) -> tuple[int | str | None, ...] | None:
    return None if shape is None else tuple(evaluated(dim, at) if isinstance(dim, str) else dim for dim in shape)


# Rows


class _Trying:
    def __init__(
        self, model: ir.Model, path: str, feeds: dict[str, Array], limits: _Limits, common: _Common, say: Progress
    ) -> None:
        self._model, self._path, self._feeds = model, path, feeds
        self._limits, self._common, self._say = limits, common, say
        self._tolerances: Limits = limits_for([model], None)
        self._names = [str(v.name) for v in model.graph.outputs]
        self._reference: tuple[Array, ...] | None = None
        self._reference_name = ""

    def table(
        self, name: str, against: Any, engines: Sequence[str] | None, pythons: Mapping[str, str], opsets: bool
    ) -> EngineTable:
        rows: list[EngineRow] = []
        by_opset: list[OpsetRow] = []
        interrupted = False
        try:
            if against is not None:
                self._take_reference(against)
            candidates = list(self._candidates(engines, pythons))
            for candidate in [*candidates, *self._torch_candidates(against)]:
                self._say(f"trying {candidate.label}")
                rows.append(self._row(candidate))
            if engines is None:
                rows += [self._listed(missing, how) for missing, how in self._not_here().items()]
            for opset in SUPPORTED if opsets else ():
                self._say(f"trying opset {opset}")
                by_opset.append(self._opset(opset, candidates))
        except KeyboardInterrupt:
            interrupted = True
        shapes = {n: a.shape for n, a in self._feeds.items()}
        return EngineTable(name, self._reference_name, shapes, tuple(rows), tuple(by_opset), (), interrupted)

    def _candidates(self, engines: Sequence[str] | None, pythons: Mapping[str, str]) -> Iterator[Candidate]:
        names = list(engines or sorted(engine_names(), key=lambda n: n != DEFAULT))
        common = dataclasses.asdict(self._common)
        for name in names:
            yield Candidate(name, "engine", self._path, engine=name, **common)
        for runtime, python in pythons.items():
            yield Candidate(runtime, "bare", self._path, python=python, **common)

    def _torch_candidates(self, against: Any) -> Iterator[Candidate]:
        """Give PyTorch's own candidates; a child process can open a source, and no model in memory."""
        for mode in MODES if isinstance(against, str) else ():
            yield Candidate(mode, "torch", against, mode=mode, **dataclasses.asdict(self._common))

    def _take_reference(self, against: Any) -> None:
        """Ask PyTorch for the answers that are right."""
        self._say("asking PyTorch")
        model = against
        if isinstance(against, str):
            from torchport.benchmark.torch_candidate import loaded_model

            model = loaded_model(against, self._common.seed, trust=self._common.trust)
        with contextlib.ExitStack() as stack:
            side = TorchSide(model, Sample("sample", self._feeds), stack)
            self._reference = tuple(np.asarray(a) for a in side.ask(self._feeds).values())
        self._reference_name = "PyTorch"
        if len(self._reference) != len(self._names):
            raise InputError(
                f"PyTorch gives {len(self._reference)} outputs, the ONNX model {len(self._names)}",
                next_step="give the model that the file was exported from",
            )

    def _run(self, candidate: Candidate, seconds: float) -> Outcome:
        return run_candidate(
            candidate, self._feeds, seconds=seconds, limit=self._limits.limit, memory=self._limits.memory
        )

    def _row(self, candidate: Candidate) -> EngineRow:
        outcome = self._run(candidate, self._limits.seconds)
        facts = outcome.facts
        if outcome.outputs is None:
            return self._failed(candidate, facts)
        if self._reference is None and candidate.kind == "engine":
            self._reference, self._reference_name = outcome.outputs, candidate.label
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
        if self._reference is None or self._reference is outputs:
            return row
        figures = self._figures(outputs)
        wrong = next((f for f in figures if not f.ok), None)
        worst = [max((getattr(f, name) for f in figures), default=0.0) for name in ("max_abs", "max_rel")]
        row = dataclasses.replace(row, status="right", max_abs=worst[0], max_rel=worst[1])
        if wrong is None:
            return row
        reason = f"output '{wrong.name}': {wrong.problem}"
        return dataclasses.replace(row, status="wrong", reason=reason, **self._diverging(candidate))  # type: ignore[arg-type]

    def _figures(self, outputs: Sequence[Array]) -> list[Figures]:
        if self._reference is None or len(outputs) != len(self._reference):
            raise EngineError(f"the engine gives {len(outputs)} outputs, the model has {len(self._names)}")
        limits = self._tolerances
        return [
            measure(name, want, got, tolerance=limits(want.dtype.name, got.dtype.name))
            for name, want, got in zip(self._names, self._reference, outputs, strict=True)
        ]

    def _diverging(self, candidate: Candidate) -> dict[str, str]:
        """Find the first node at which an engine differs from the default one: fields of its row."""
        if candidate.kind != "engine" or candidate.engine == DEFAULT:
            return {}
        self._say(f"looking where {candidate.label} differs")
        pair = (DEFAULT, candidate.engine)
        try:
            found = compare(self._path, inputs=self._feeds, layers=True, engines=pair, libraries=self._common.libraries)
        except TorchportError as error:
            return {"first_divergence": f"could not be found: {error.what}"}
        assert isinstance(found, dict)
        place = found[candidate.engine].first_divergence
        if place is None:
            return {}
        return {
            "first_divergence": f"{place.operator} '{place.node}'",
            "node": place.node,
            "source": place.origin.source,
        }

    def _failed(self, candidate: Candidate, facts: Mapping[str, Any]) -> EngineRow:
        opened = facts["refused"] == "EngineError" and facts["stage"] != "run"
        node = facts.get("node", "")
        origin = find_origin(self._model, node) if node else None
        return EngineRow(
            candidate.label,
            "refuses" if opened else "fails",
            reason=facts["reason"],
            node=node,
            source=origin.source if origin else "",
            next_step=facts.get("next_step", ""),
        )

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
            return self._failed(candidate, outcome.facts).status
        if self._reference is None:
            return "runs"
        return "right" if all(f.ok for f in self._figures(outcome.outputs)) else "wrong"
