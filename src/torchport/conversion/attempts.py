"""Try one route after the other until one gives a model that is proven."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir

from torchport import process
from torchport.capture import interface
from torchport.capture.frozen_branches import one_sided, watch_lines
from torchport.capture.guards import Challenge
from torchport.capture.repairs.quantized_layers import overflow, quantized
from torchport.capture.routes.route import Captured, Request, load
from torchport.capture.source_lines import is_user_file
from torchport.conversion.subject import Job
from torchport.engines import custom_operators
from torchport.engines.registry import DEFAULT, find_engine
from torchport.engines.session import open_session
from torchport.errors import CaptureError, EngineError, OpsetError, ProofError, RefusedError, TorchportError
from torchport.irtools import metadata
from torchport.irtools.metadata import find_origin
from torchport.irtools.types import tensor_infos
from torchport.opset import convert as opsets
from torchport.process import silence
from torchport.results import Attempt, AttemptLine, Exported, Finding, Proof
from torchport.torch_compat import parts
from torchport.verification import cases
from torchport.verification.equivalence import candidate

_OLD_ROUTES = ("script", "trace")  # that an old exporter is wrong says less than that the opset is too low
BRANCH_ROUNDS = 6  # further random values for a trace that may have frozen a branch


class Tried:
    """A model a route gave, with its proof."""

    def __init__(
        self,
        route: str,
        model: ir.Model,
        proof: Proof,
        findings: Sequence[Finding],
        problem: str,
        repairs: tuple[str, ...] = (),
    ) -> None:
        self.route = route
        self.model = model
        self.proof = proof
        self.findings = tuple(findings)
        self.problem = problem
        self.repairs = repairs


class Attempts:
    """Tries routes until one is proven."""

    def __init__(
        self,
        job: Job,
        *,
        opset: int,
        keep_unused: bool,
        fold_constants: bool,
        weights_apart: bool,
        custom_opsets: dict[str, int],
        translations: dict[Any, Callable[..., Any]],
        libraries: Sequence[str | os.PathLike[str]],
        verbose: bool,
    ) -> None:
        self.job = job
        self.opset = opset
        self.keep_unused = keep_unused
        self.custom_opsets = custom_opsets
        self.libraries = libraries
        self.attempts: list[Attempt] = []
        self.errors: list[RefusedError] = []
        self.unproven: list[Tried] = []
        self.challenges: list[Challenge] = []
        self.features_off: list[Finding] = []
        self.request = Request(
            job.call,
            job.capture_tensors(),
            job.spec.inputs,
            opset,
            fold_constants=fold_constants,
            weights_apart=weights_apart,
            translations=translations,
            custom_opsets=custom_opsets,
            program=job.subject.program,
            verbose=verbose,
        )

    def run(self, routes: Sequence[str], *, allow_unproven: bool) -> Tried:
        with parts.noted() as self.features_off:
            return self._run(routes, allow_unproven=allow_unproven)

    def _run(self, routes: Sequence[str], *, allow_unproven: bool) -> Tried:
        for route in routes:
            started = time.perf_counter()
            self.job.say(f"route {route}: capturing")
            tried: Tried | None = None
            try:
                tried = self._try(route)
                reason = tried.problem
            except RefusedError as error:
                self.errors.append(error)
                reason = error.what + (f" ({error.where})" if error.where else "")
            outcome = "failed" if reason else "passed"
            seconds = round(time.perf_counter() - started, 2)
            repairs = tried.repairs if tried is not None else ()
            attempt = Attempt(route, outcome, reason, seconds, repairs)  # type: ignore[arg-type]
            self.attempts.append(attempt)
            self.job.say(AttemptLine(attempt))
            if tried is not None and not reason:
                return tried
            if tried is not None:
                self.unproven.append(tried)
        if allow_unproven and self.unproven:
            return max(self.unproven, key=lambda t: t.proof.count("pass") / max(1, len(t.proof.cases)))
        raise self._refusal()

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
        job = self.job
        captured = load(route)(self.request)
        with silence(verbose=self.request.verbose):
            model = self._finish(captured)
            prepared = find_engine(DEFAULT).prepare(model)
            model, fitted = prepared.model, prepared.findings
            try:
                session = open_session(model, libraries=self.libraries)
            except EngineError as error:
                self.errors.append(error)
                self._name_outputs(model)
                problem = error.what + _origin_of(error.node, model)
                return Tried(route, model, Proof((), (Finding(problem),), DEFAULT), fitted, problem, captured.repairs)
        fitted += [Finding(f"{name} has no kernel: PyTorch ran it for the proof") for name in session.in_python]
        process.release()
        self.challenges += captured.challenges  # what one route made doubtful is asked of the next ones too
        job.say(f"route {route}: proving")
        with silence():
            proof = job.examiner().examine(
                candidate(session, job.input_names, job.output_names),
                branch_rounds=BRANCH_ROUNDS if captured.example_only else 0,
                excuses=not captured.suspects,
                sizes=[c.sizes for c in self.challenges],
            )
        self._name_outputs(model)
        problem = _problem(proof, model, captured, job) or self._wrong_body(model) or _frozen_branch(captured, job)
        findings = captured.suspects if problem else _harmless(captured)
        return Tried(route, model, proof, [*fitted, *findings], problem, captured.repairs)

    def _wrong_body(self, model: ir.Model) -> str:
        """Where kernels ran, the bodies of their nodes have not been asked yet."""
        bodies = custom_operators.with_bodies_only(model)
        if bodies is None:
            return ""
        self.job.say("proving what nodes are made of without their kernels")
        with silence():
            session = open_session(bodies, libraries=self.libraries)
            proof = self.job.examiner().examine(candidate(session, self.job.input_names, self.job.output_names))
        return f"without the kernels, by the nodes' bodies: {proof.verdict_line()}" if not proof.passed else ""

    def _finish(self, captured: Captured) -> ir.Model:
        job = self.job
        model = captured.model
        interface.dress(
            model,
            tensors=dict(zip(job.call.names, job.call.tensors, strict=True)),
            dims=job.spec.inputs,
            input_names=job.input_names,
            output_names=job.output_names,
            keep_unused=self.keep_unused,
        )
        interface.drop_unused_functions(model)
        model = opsets.convert(model, self.opset)
        model.opset_imports.update(self.custom_opsets)
        return model

    def _name_outputs(self, model: ir.Model) -> None:
        """Once only, after all that will be asked was asked: a name given too early would stay."""
        job = self.job
        interface.name_output_dims(model, dims=job.spec.inputs, spec=job.spec, observed=job.examiner().observed)

    def result(self, best: Tried, path: str | None, findings: Sequence[Finding] = ()) -> Exported:
        proven = not best.problem
        metadata.write(
            best.model,
            route=best.route,
            proof=best.proof,
            unproven="" if proven else best.problem,
            operators=custom_operators.described(best.model, self.libraries),
        )
        return Exported(
            model=best.model,
            route=best.route,
            attempts=tuple(self.attempts),
            proof=best.proof,
            inputs=tensor_infos(best.model.graph.inputs),
            outputs=tensor_infos(best.model.graph.outputs),
            findings=(
                *(*self.job.findings, *best.findings, *findings, *self._ignored_names(best.model)),
                *self.features_off,
            ),
            path=path,
            opset=best.model.opset_imports.get("", 0),
            proven=proven,
        )

    def _ignored_names(self, model: ir.Model) -> list[Finding]:
        """Names the user gave to axes of outputs that do not vary."""
        shapes = {str(v.name): list(v.shape or ()) for v in model.graph.outputs}
        return [
            Finding(f"axis {axis} of output '{name}' does not vary; its name '{given}' was not used")
            for name, axes in self.job.spec.outputs.items()
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
                next_step=(stopped and self.errors and self.errors[0].next_step)
                or "see the proof for the case that differs; --allow-unproven saves it all the same",
            )
        if self.unproven and not blocked:
            return EngineError(
                "the engine cannot run the model, so that nothing can be proven; nothing was saved",
                where=story,
                next_step="try another opset or dtype; --allow-unproven saves it all the same",
            )
        if blocked:
            nearest = [e.nearest for e in blocked if e.nearest is not None]
            near = min(nearest, key=lambda n: abs(n - self.opset), default=None)
            return OpsetError(
                f"the model cannot be expressed in opset {self.opset}",
                blockers=[b for e in blocked for b in e.blockers],
                nearest=near,
                where=story,
                next_step=f"use opset {near}" if near else "use a later opset",
            )
        first = self.errors[0]
        refusal = CaptureError(
            "no route could capture the model",
            where=story,
            next_step=first.next_step or "change the line named above",
            attempts=self.attempts,
        )
        refusal.__cause__ = first
        return refusal


def _problem(proof: Proof, model: ir.Model, captured: Captured, job: Job) -> str:
    """Why this proof is not enough, in one line; empty when it is."""
    if not proof.failures:
        return _unproven_dimension(proof, job) or ("" if proof.passed else proof.verdict_line())
    worst = proof.failures[0]
    sizes = " ".join(f"{k}={v}" for k, v in worst.sizes.items())
    text = f"case '{worst.label}'" + (f" ({sizes})" if sizes else "") + f": {worst.note}"
    text += _origin_of(worst.node, model)
    for finding in (*captured.suspects[:3], *captured.reasons[:1]):
        text += f"; {finding}"
    cause = overflow(job.call.target) if quantized.name in captured.repairs else ""
    text += f"; {cause}" if cause else ""
    lines = [c.line for c in captured.challenges if c.line and c.sizes.items() <= worst.sizes.items()]
    return text + (f"; the capture settled that size at {lines[0]}" if lines else "")


def _frozen_branch(captured: Captured, job: Job) -> str:
    """A branch on values that went one way in every case shows nothing about the other."""
    places = [s.where for s in captured.suspects if is_user_file(s.where.rpartition(":")[0])]
    files = frozenset(os.path.abspath(p.rpartition(":")[0]) for p in places)
    if not files:
        return ""
    with silence():
        runs = job.examiner().replay(lambda: watch_lines(files), branch_rounds=BRANCH_ROUNDS)
    for place in places:
        if one_sided(place, runs):
            return f"the trace froze the branch at {place}, and no case went the other way"
    return ""


def _origin_of(node: str, model: ir.Model) -> str:
    """Return the source line of the node that an engine named, as the end of a message."""
    origin = find_origin(model, node) if node else None
    return f"; that node comes from {origin}" if origin is not None and str(origin) != "unknown" else ""


def _unproven_dimension(proof: Proof, job: Job) -> str:
    """A dimension is proven only by a passing case at another size than the example's."""
    sizes = cases.example_sizes(job.proof_inputs())
    for report in job.examiner().dimensions:
        moved = [c for c in proof.cases if c.sizes.get(report.name) not in (None, sizes[report.name])]
        if report.accepted and not any(c.verdict == "pass" for c in moved):
            return f"dimension '{report.name}' was not proven at any size but {sizes[report.name]}"
    return ""


def _harmless(captured: Captured) -> list[Finding]:
    return [Finding(f"{s.message}; no case showed it to matter", s.where) for s in captured.suspects]
