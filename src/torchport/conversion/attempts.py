"""Try one route after the other until one gives a model that is proven."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir

from torchport import process
from torchport.capture import interface
from torchport.capture.frozen_branches import one_sided, watch_branches
from torchport.capture.guards import Challenge
from torchport.capture.origins import is_user_file
from torchport.capture.repairs.quantized_layers import overflow, quantized
from torchport.capture.repairs.views import settled_squeezes
from torchport.capture.routes.route import Captured, Request, load
from torchport.conversion.options import ExportOptions
from torchport.conversion.subject import TorchModel
from torchport.engines import custom_operators
from torchport.engines.custom_operators import library_paths
from torchport.engines.protocol import Prepared, Workaround
from torchport.engines.registry import find_engine
from torchport.engines.session import Session, open_session
from torchport.errors import (
    CaptureError,
    EngineError,
    FixedDimensionError,
    OpsetError,
    ProofError,
    RefusedError,
    SettledOtherwiseError,
    TimeLimitError,
    TorchportError,
)
from torchport.irtools import metadata
from torchport.irtools.dims import free_roots, texts_of
from torchport.irtools.metadata import find_origin
from torchport.irtools.types import tensor_infos
from torchport.operators import registration
from torchport.opset import convert as opsets
from torchport.process import silence
from torchport.results import Attempt, AttemptLine, Bound, Case, Dim, Exported, Finding, Proof
from torchport.torch_compat import parts
from torchport.verification.bounds import as_dims, dims_text, find_bounds
from torchport.verification.equivalence import candidate
from torchport.verification.values import example_sizes

_OLD_ROUTES = ("script", "trace")  # that an old exporter is wrong says less than that the opset is too low
_THEIR_OWN = (SettledOtherwiseError, TimeLimitError)  # refusals that are no matter of sizes that PyTorch refuses
_BY_SIZES = ("export", "rewrite")  # routes whose capture depends on the example's sizes alone
_UNPROVEN = "--allow-unproven (allow_unproven=True) saves it all the same"
_LINE = re.compile(r"\.py:\d+")
_SECONDS = 120  # that all captures and proofs may take, or
_TIMES = 3  # times the first one's
_SAME_DB = 60.0  # the SQNR of errors of 1e-3, float32's relative tolerance
_FEWEST = 2  # captures at other sizes that a formula is taken from
BRANCH_ROUNDS = 6  # further random values for a trace that may have frozen a branch


@dataclasses.dataclass(frozen=True)
class Tried:
    """A model that a route gave, with its proof.

    Attributes:
        problem: why the proof is not enough; empty if it is.
        repairs: names of the repairs that the capture took.
        workarounds: what was changed for the target engine.
    """

    route: str
    model: ir.Model
    proof: Proof
    findings: tuple[Finding, ...]
    problem: str
    repairs: tuple[str, ...] = ()
    workarounds: tuple[Workaround, ...] = ()


@dataclasses.dataclass(frozen=True)
class _Trial:
    """A captured model and its proof, before it is judged. `problem` says why the engine refuses it."""

    captured: Captured
    prepared: Prepared
    session: Session | None
    proof: Proof
    problem: str = ""


class Attempts:
    """Tries routes until one is proven.

    Attributes:
        attempts: how each route ended.
        errors: what routes raised.
        unproven: models whose proof failed.
        challenges: sizes that a route made doubtful; the next routes are proven there too.
    """

    def __init__(self, source: TorchModel, options: ExportOptions) -> None:
        self.source = source
        self.options = options
        self.libraries = library_paths(options.libraries)
        self.attempts: list[Attempt] = []
        self.errors: list[RefusedError] = []
        self.unproven: list[Tried] = []
        self.challenges: list[Challenge] = []
        self.features_off: list[Finding] = []
        self._routes: Sequence[str] = ()
        self._begun = time.thread_time()
        self._end = math.inf  # of the time for captures, once the first one is proven or refused
        self._postponed = ""  # a route whose captures at other sizes come after `rewrite`
        self._stopped_unchecked = False  # the last capture, at sizes that PyTorch may refuse
        self._refused_early = False  # its first capture was, before the proof: that comes after `rewrite` too
        self.request = Request(
            source.call,
            source.capture_tensors(),
            source.spec.inputs,
            options.opset,
            fold_constants=options.fold_constants,
            weights_apart=options.weights != "include",
            translations=registration.by_overload(options.translations or {}),
            custom_opsets=dict(options.custom_opsets or {}),
            program=source.subject.program,
            verbose=options.verbose,
        )

    def run(self, routes: Sequence[str]) -> Tried:
        """Return the first model that is proven; the best one if `allow_unproven`, else raise what says most."""
        self._routes = routes
        with parts.noted() as self.features_off:
            return self._run(routes)

    def _run(self, routes: Sequence[str]) -> Tried:
        waiting = list(routes)
        in_part: tuple[Tried, Attempt] | None = None  # right at multiples of a size, until `rewrite` was tried
        while waiting:
            route = waiting.pop(0)
            if route == "rewrite" and self._postponed and in_part is None:
                waiting.insert(0, self._postponed)
            tried, attempt = self._attempt(route)
            only = _only_multiples(tried) if tried is not None and "rewrite" in waiting else ""
            if tried is not None and only:
                in_part = tried, attempt
                attempt = dataclasses.replace(attempt, outcome="failed", reason=only)
            self._note(attempt)
            if attempt.outcome == "passed":
                assert tried is not None
                return tried
            is_over = time.thread_time() > self._end
            if in_part is not None and (route == "rewrite" or is_over):
                self._note(in_part[1])
                return in_part[0]
            if tried is not None and not only:
                self.unproven.append(tried)
            while is_over and waiting:
                self._note(Attempt(waiting.pop(0), "failed", "not tried: the time for captures is over", 0.0))
        if self.options.allow_unproven and self.unproven:
            return max(self.unproven, key=lambda t: t.proof.count("pass") / max(1, len(t.proof.cases)))
        raise self._refusal()

    def _attempt(self, route: str) -> tuple[Tried | None, Attempt]:
        """Try one route. Return its model, None if the route refused, and the record of the attempt."""
        started = time.perf_counter()
        self.options.say(f"route {route}: capturing")
        tried: Tried | None = None
        try:
            tried = self._try(route)
            reason = tried.problem
        except RefusedError as error:
            self.errors.append(error)
            reason = error.what + (f" ({error.where})" if error.where else "")
        seconds = round(time.perf_counter() - started, 2)
        repairs = tried.repairs if tried is not None else ()
        return tried, Attempt(route, "failed" if reason else "passed", reason, seconds, repairs)

    def _note(self, attempt: Attempt) -> None:
        self.attempts.append(attempt)
        self.options.say(AttemptLine(attempt))

    def _try(self, route: str) -> Tried:
        """Capture, name, convert and prove. What a route trips over ends that route, not the export."""
        try:
            return self._try_route(route)
        except TorchportError:
            raise
        except Exception as error:
            what = f"torchport's own error, please report it: {type(error).__name__}: {error}"
            raise CaptureError(what, next_step="--debug shows where") from error

    def _try_route(self, route: str) -> Tried:
        """Capture and prove; where the capture holds at the example's sizes only, capture again at others."""
        refusal: RefusedError | None = None
        best: _Trial | None = None
        for request in self._requests(route):
            try:
                trial = self._trial(route, request)
            except RefusedError as error:
                self._stopped_unchecked = request.unchecked and not isinstance(error, _THEIR_OWN)
                if self._stopped_unchecked:
                    continue
                refusal = refusal or error
                if best is None and not isinstance(refusal, FixedDimensionError):
                    raise
                continue
            trial = self._narrowed(route, self._squeezed(route, trial))
            if not self._fails_elsewhere(trial.proof) or self._is_postponed(route, trial):
                best = trial
                break
            best = best or trial
        if best is None:
            assert refusal is not None  # there is at least one request
            best = self._fitted(route)
            if best is None:
                raise refusal
        return self._judged(route, best)

    def _fitted(self, route: str) -> _Trial | None:
        """A capture from those at several sizes, where each alone holds at its own; None if they have no formula."""
        elsewhere = tuple(self.source.tensors_at_other_sizes()) if route == "export" else ()
        if len(elsewhere) < _FEWEST:
            return None
        self.options.say(f"route {route}: comparing captures at several sizes")
        try:
            trial = self._trial(route, dataclasses.replace(self.request, elsewhere=elsewhere))
        except RefusedError as error:
            self.options.say(f"route {route}: {error.what}")
            return None
        return trial if not trial.proof.failures else None

    def _requests(self, route: str) -> Iterator[Request]:
        """The capture's request with the example, then with other sizes: those of the example may be special."""
        by_sizes = route in _BY_SIZES and self.request.program is None
        if route != self._postponed or self._refused_early:
            yield from self._by_quotients(route) if by_sizes else (self.request,)
        if by_sizes:
            for tensors in self.source.tensors_at_other_sizes():
                self.options.say(f"route {route}: capturing at other sizes")
                yield dataclasses.replace(self.request, tensors=tensors).by_quotients(self.source.steps)

    def _by_quotients(self, route: str) -> Iterator[Request]:
        """The first requests: by the quotients of sizes that are multiples, larger ones where the model takes them.

        A condition that the example answers otherwise than these is one for `rewrite`, which is tried first then.
        """
        steps = self.source.steps
        judged = route == "export" and "rewrite" in self._routes and not self._postponed
        for larger, checked in self.source.tensors_for_steps() if steps else ():
            request = dataclasses.replace(self.request, tensors=larger).by_quotients(steps)
            if request.splits:
                yield dataclasses.replace(request, judged=judged, unchecked=not checked)
                if checked or not self._stopped_unchecked:
                    return
        yield self.request.by_quotients(steps)

    def _is_postponed(self, route: str, trial: _Trial) -> bool:
        """Let `rewrite` go first where the model fails for a condition on sizes that the capture settled: it keeps both
        sides, while a capture at other sizes has one again."""
        failures = [c.sizes.items() for c in trial.proof.failures]
        settled = [c.sizes.items() for c in trial.captured.challenges if c.line and c.sizes]
        is_settled = any(sizes <= failed for sizes in settled for failed in failures)
        if route != "export" or "rewrite" not in self._routes or self._postponed or not is_settled:
            return False
        self._postponed = route if next(self.source.tensors_at_other_sizes(), None) is not None else ""
        return bool(self._postponed)

    def _squeezed(self, route: str, trial: _Trial) -> _Trial:
        """The trial with squeezes that leave what varies, where a model fails at sizes of 1 alone and passes so."""
        failures = trial.proof.failures
        if not failures or not all(1 in case.sizes.values() for case in failures):
            return trial
        model = settled_squeezes(trial.prepared.model)
        if model is None:
            return trial
        with silence(verbose=self.options.verbose):
            session = open_session(model, self.options.engine, libraries=self.libraries)
        proof = self._prove(route, session, trial.captured)
        prepared = dataclasses.replace(trial.prepared, model=model)
        return trial if proof.failures else dataclasses.replace(trial, prepared=prepared, session=session, proof=proof)

    def _narrowed(self, route: str, trial: _Trial) -> _Trial:
        """The trial with its bounds, where the engine only fails at sizes far below the example's: another capture
        would cost as much again for sizes that nobody feeds."""
        if trial.session is None or not all(c.verdict == "error" for c in trial.proof.failures):
            return trial
        proof, example = self._bounded(route, trial.session, trial.proof), example_sizes(self.source.inputs)
        far = all(bound.step == 1 and bound.min * 4 <= example[name] for name, bound in proof.bounds.items())
        return dataclasses.replace(trial, proof=proof) if proof.bounds and far else trial

    def _fails_elsewhere(self, proof: Proof) -> bool:
        """Check that a proof fails, and only at other sizes than the example's."""
        example = example_sizes(self.source.inputs)
        return bool(proof.failures) and all(
            any(c.sizes.get(n) != s for n, s in example.items()) for c in proof.failures
        )

    def _trial(self, route: str, request: Request) -> _Trial:
        is_first = self._end == math.inf
        try:
            with process.time_limit(self._end):
                return self._captured(route, request)
        except SettledOtherwiseError:
            self._postponed, self._refused_early, is_first = route, True, False
            raise
        except RefusedError:
            is_first = is_first and not request.unchecked
            raise
        finally:
            if is_first:
                self._end = self._begun + max(_SECONDS, _TIMES * (time.thread_time() - self._begun))

    def _captured(self, route: str, request: Request) -> _Trial:
        """A route's model, finished for the engine and proven."""
        try:
            captured = load(route)(request)
        finally:
            self.source.reference.restore()
        with silence(verbose=self.options.verbose):
            prepared = self._prepare(self._finish(captured))
            try:
                session = open_session(prepared.model, self.options.engine, libraries=self.libraries)
            except EngineError as error:
                self.errors.append(error)
                problem = error.what + _origin_of(error.node, prepared.model)
                return _Trial(captured, prepared, None, Proof((), (Finding(problem),), self.options.engine), problem)
        process.release()
        self.challenges += captured.challenges
        return _Trial(captured, prepared, session, self._prove(route, session, captured))

    def _judged(self, route: str, trial: _Trial) -> Tried:
        captured, model, session = trial.captured, trial.prepared.model, trial.session
        findings, proof, problem = trial.prepared.findings, trial.proof, trial.problem
        if session is not None:
            findings += [Finding(f"{name} has no kernel: PyTorch ran it for the proof") for name in session.in_python]
            proof = self._bounded(route, session, proof)
        self._name_outputs(model)
        if session is not None:
            problem = self._problem(proof, model, captured)
            findings += (*captured.notes, *(captured.suspects if problem else _harmless(captured)))
            far = [c.line for c in captured.challenges if not c.sizes]
            untried = "the condition was not tried the other way, which needs very large inputs"
            findings += [Finding(untried, line) for line in far]
        return Tried(route, model, proof, tuple(findings), problem, captured.repairs, trial.prepared.workarounds)

    def _prepare(self, model: ir.Model) -> Prepared:
        """Return the model that is proven and saved: with the target's workarounds, or as it is."""
        return find_engine(self.options.target).prepare(model) if self.options.target else Prepared(model)

    def _prove(self, route: str, session: Session, captured: Captured) -> Proof:
        self.options.say(f"route {route}: proving")
        with silence():
            return self.source.verifier.verify(
                candidate(session, self.source.input_names, self.source.output_names),
                branch_rounds=BRANCH_ROUNDS if captured.example_only or captured.suspects else 0,
                excuses=not captured.suspects,
                sizes=[c.sizes for c in self.challenges if c.sizes],
                brief=route != self._routes[-1],
            )

    def _bounded(self, route: str, session: Session, proof: Proof) -> Proof:
        """Search the sizes at which the model is right, where it fails at others.

        Where the engine only fails outside the bounds, nobody gets a wrong output: these cases do not count.
        """
        if not proof.failures or not any(c.verdict == "pass" for c in proof.cases):
            return proof
        self.options.say(f"route {route}: searching the sizes at which it is right")
        verifier, example = self.source.verifier, example_sizes(self.source.inputs)
        onnx = candidate(session, self.source.input_names, self.source.output_names)
        with silence():
            bounds = {} if verifier.is_costly else find_bounds(proof, example, lambda s: verifier.run_at(onnx, s))
        proof = dataclasses.replace(proof, bounds=bounds)
        if not bounds or any(c.verdict == "fail" for c in proof.failures):
            return proof
        cases = [dataclasses.replace(c, verdict="outside") if c.verdict == "error" else c for c in proof.cases]
        runs = [Finding(f"the model runs at {name} {bound}; below, the engine fails") for name, bound in bounds.items()]
        return dataclasses.replace(proof, cases=tuple(cases), findings=(*proof.findings, *runs))

    def narrowed(self, bounds: Mapping[str, Bound]) -> Iterator[tuple[str, dict[int, Dim]]]:
        """The dynamic axes of each input, bounded to the sizes at which the model is right."""
        names = dict(zip(self.source.call.names, self.source.input_names, strict=True))
        return ((names[own], as_dims(dims, bounds)) for own, dims in self.source.spec.inputs.items())

    def _problem(self, proof: Proof, model: ir.Model, captured: Captured) -> str:
        return (
            _problem(proof, model, captured, self.source)
            or self._wrong_body(model)
            or _frozen_branch(captured, self.source)
        )

    def _wrong_body(self, model: ir.Model) -> str:
        """Prove the bodies of nodes that kernels ran before."""
        bodies = custom_operators.with_bodies_only(model)
        if bodies is None:
            return ""
        self.options.say("proving what nodes are made of without their kernels")
        with silence():
            session = open_session(bodies, self.options.engine, libraries=self.libraries)
            proof = self.source.verifier.verify(candidate(session, self.source.input_names, self.source.output_names))
        return f"without the kernels, by the nodes' bodies: {proof.verdict_line()}" if not proof.passed else ""

    def _finish(self, captured: Captured) -> ir.Model:
        source, model = self.source, captured.model
        interface.dress(
            model,
            tensors=dict(zip(source.call.names, source.call.tensors, strict=True)),
            dims=source.spec.inputs,
            input_names=source.input_names,
            output_names=source.output_names,
            keep_unused=self.options.keep_unused_inputs,
        )
        interface.drop_unused_functions(model)
        model = opsets.convert(model, self.options.opset)
        model.opset_imports.update(self.options.custom_opsets or {})
        return model

    def _name_outputs(self, model: ir.Model) -> None:
        """Name the outputs' dimensions, once and after the proof: a name given too early would stay."""
        spec, observed = self.source.spec, self.source.verifier.observed
        interface.name_output_dims(model, dims=spec.inputs, spec=spec, observed=observed)

    def result(self, best: Tried, path: str | None, findings: Sequence[Finding] = ()) -> Exported:
        """Write the record of the export into the model, and return it."""
        proven = not best.problem
        metadata.write(
            best.model,
            route=best.route,
            proof=best.proof,
            unproven="" if proven else best.problem,
            bounds=self._bounds(best.proof),
            operators=custom_operators.described(best.model, self.libraries),
            workarounds={self.options.engine: {w.name: w.nodes for w in best.workarounds}} if best.workarounds else {},
            dims=free_roots({text for value in best.model.graph.inputs for text in texts_of(value.shape)}),
        )
        return Exported(
            model=best.model,
            route=best.route,
            attempts=tuple(self.attempts),
            proof=best.proof,
            inputs=tensor_infos(best.model.graph.inputs),
            outputs=tensor_infos(best.model.graph.outputs),
            findings=(
                *(*self.source.findings, *best.findings, *findings, *self._ignored_names(best.model)),
                *self.features_off,
            ),
            path=path,
            opset=best.model.opset_imports.get("", 0),
            proven=proven,
        )

    def _bounds(self, proof: Proof) -> dict[str, Bound]:
        """The bounds that were found, and those that the caller declared."""
        dims = [d for axes in self.source.spec.inputs.values() for d in axes.values()]
        return {**{d.root: Bound(d.min) for d in dims if d.min > 1 and d.name == d.root}, **proof.bounds}

    def _ignored_names(self, model: ir.Model) -> list[Finding]:
        """Report names that the user gave to axes of outputs that do not vary."""
        shapes = {str(v.name): list(v.shape or ()) for v in model.graph.outputs}
        return [
            Finding(f"axis {axis} of output '{name}' does not vary; its name '{given}' was not used")
            for name, axes in self.source.spec.outputs.items()
            for axis, given in axes.items()
            if shapes[name] and isinstance(shapes[name][axis], int)
        ]

    def _refusal(self) -> RefusedError:
        """The error that says most: wrong answers before an opset out of reach before a failed capture."""
        story = "\n       ".join(f"route {a.route}: {a.reason}" for a in self.attempts)
        blocked = [e for e in self.errors if isinstance(e, OpsetError)]
        proofs = [t.proof for t in self.unproven if t.proof.cases and not (blocked and t.route in _OLD_ROUTES)]
        proofs.sort(key=lambda p: not p.failures)
        if proofs:
            # What the old exporters froze is not what is wrong with the model: the first route says that.
            stopped = len(self.attempts) > len(self.unproven) and all(t.route in _OLD_ROUTES for t in self.unproven)
            return ProofError(
                "no route gives the PyTorch model's answers; nothing was saved"
                if stopped
                else "the ONNX model does not give the PyTorch model's answers; nothing was saved",
                proof=proofs[0],
                attempts=self.attempts,
                where=story,
                next_step=self._bounds_advice(proofs[0])
                or (stopped and self.errors and self.errors[0].next_step)
                or f"see the proof for the case that differs; {_UNPROVEN}",
            )
        if self.unproven and not blocked:
            return EngineError(
                "the engine cannot run the model, so that nothing can be proven; nothing was saved",
                where=story,
                next_step=f"{self._engine_advice()}; {_UNPROVEN}",
            )
        if blocked:
            nearest = [e.nearest for e in blocked if e.nearest is not None]
            near = min(nearest, key=lambda n: abs(n - self.options.opset), default=None)
            return OpsetError(
                f"the model cannot be expressed in opset {self.options.opset}",
                blockers=[b for e in blocked for b in e.blockers],
                nearest=near,
                where=story,
                next_step=f"use opset {near}" if near else "use a later opset",
            )
        first = self.errors[0]
        refusal = CaptureError(
            "no route could capture the model",
            where=story,
            next_step=first.next_step
            or ("change the line named above" if _LINE.search(story) else "change what the reasons above name"),
            attempts=self.attempts,
        )
        refusal.__cause__ = first
        return refusal

    def _engine_advice(self) -> str:
        """The engine's own next step, such as naming a library of kernels; it knows why it refused the model."""
        own = [e for e in self.errors if isinstance(e, EngineError)]
        advice = [e.next_step for e in (*own, *self.errors) if e.next_step]
        return advice[0] if advice else "try another opset or dtype"

    def _bounds_advice(self, proof: Proof) -> str:
        """The line that declares the sizes at which the model is right, if they were found."""
        if not proof.bounds:
            return ""
        found = " and ".join(f"{name} {bound}" for name, bound in proof.bounds.items())
        texts = [dims_text(name, dims) for name, dims in self.narrowed(proof.bounds)]
        lines = " ".join(f"--dynamic '{text}'" for text in texts)
        return (
            f"it is right at {found}: declare that with {lines} (in Python dynamic={texts}), "
            "or let --narrow (narrow=True) do it"
        )


def _problem(proof: Proof, model: ir.Model, captured: Captured, source: TorchModel) -> str:
    """Why this proof is not enough, in one line; empty when it is."""
    if not proof.failures:
        return _unproven_dimension(proof, source) or ("" if proof.passed else proof.verdict_line())
    worst = proof.failures[0]
    sizes = " ".join(f"{k}={v}" for k, v in worst.sizes.items())
    text = f"case '{worst.label}'" + (f" ({sizes})" if sizes else "") + f": {worst.note}"
    text += _origin_of(worst.node, model)
    for finding in (*captured.suspects[:3], *captured.reasons[:1]):
        text += f"; {finding}"
    cause = overflow(source.call.target) if quantized.name in captured.repairs else ""
    text += f"; {cause}" if cause else ""
    lines = [c.line for c in captured.challenges if c.line and c.sizes and c.sizes.items() <= worst.sizes.items()]
    return text + (f"; the capture settled that size at {lines[0]}" if lines else "")


def _only_multiples(tried: Tried) -> str:
    """Why a proven model is not all one could wish for: PyTorch takes every size, and the engine multiples of one, as
    where code pads unless a size is a multiple. Empty if that is not so; the route `rewrite` may keep both ways."""
    steps = [f"{name} {bound}" for name, bound in tried.proof.bounds.items() if bound.step > 1]
    return f"the model runs at {' and '.join(steps)} only, PyTorch at others too" if steps and not tried.problem else ""


def _frozen_branch(captured: Captured, source: TorchModel) -> str:
    """A branch on values that went one way in every case shows nothing about the other."""
    places = [s.where for s in captured.suspects if is_user_file(s.where.rpartition(":")[0])]
    files = frozenset(os.path.abspath(p.rpartition(":")[0]) for p in places)
    if not files:
        return ""
    with silence():
        runs = source.verifier.replay(lambda: watch_branches(files), branch_rounds=BRANCH_ROUNDS)
    for place in places:
        if one_sided(place, runs):
            return f"the capture froze the branch at {place}, and no case went the other way"
    return ""


def _origin_of(node: str, model: ir.Model) -> str:
    """Return the source line of the node that an engine named, as the end of a message."""
    origin = find_origin(model, node) if node else None
    return f"; that node comes from {origin}" if origin is not None and str(origin) != "unknown" else ""


def _unproven_dimension(proof: Proof, source: TorchModel) -> str:
    """A dimension is proven only by a case at another size than the example's that passes.

    One that is ill-conditioned will do where the numbers as a whole agree as closely as they have to one by one.
    """
    sizes = example_sizes(source.inputs)
    for report in source.verifier.dimensions:
        moved = [c for c in proof.cases if c.sizes.get(report.name) not in (None, sizes[report.name])]
        if report.accepted and not any(_agrees(c) for c in moved):
            return f"dimension '{report.name}' was not proven at any size but {sizes[report.name]}"
    return ""


def _agrees(case: Case) -> bool:
    return case.verdict == "pass" or (case.verdict == "ill-conditioned" and case.sqnr >= _SAME_DB)


def _harmless(captured: Captured) -> list[Finding]:
    return [Finding(f"{s.message}; no case showed it to matter", s.where) for s in captured.suspects]
