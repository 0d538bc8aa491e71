"""The main road: capture, verify, save. The only module that knows every room."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import onnx_ir as ir
import torch

from torchport import memory, metadata
from torchport.capture import choose, dynamic, interface, models
from torchport.capture.blame import line_of_error
from torchport.capture.dynamic import DynamicSpec
from torchport.capture.origins import find_origin
from torchport.capture.reference import Array, Reference
from torchport.capture.routes.base import Captured, Request
from torchport.capture.state import MODES, Mode, preserved
from torchport.capture.structure import Call, as_tensor, signature_of
from torchport.engines.base import Session, open_session
from torchport.errors import (
    CaptureError,
    DynamicError,
    EngineError,
    FileError,
    ForwardError,
    InputError,
    OpsetError,
    OptionError,
    ProofError,
    RefusedError,
    SourceError,
)
from torchport.graph import files, opset as opsets
from torchport.graph.describe import tensor_infos
from torchport.proving import sampling
from torchport.proving.proof import DimensionReport, Examiner
from torchport.proving.sampling import ProofInput, Question
from torchport.records import Attempt, Dim, Exported, Finding, Proof
from torchport.silence import silence
from torchport.tensors import to_numpy, to_torch

DEFAULT_OPSET = 20
BRANCH_ROUNDS = 6  # further random values for a trace that may have frozen a branch

Weights = Literal["include", "inputs", "omit"]
Progress = Callable[[str], None]


def export(
    model: Any,
    args: Any = (),
    *,
    kwargs: dict[str, Any] | None = None,
    output: str | os.PathLike[str] | None = None,
    dynamic: Any = None,
    examples: Sequence[Any] = (),
    route: str = "auto",
    opset: int = DEFAULT_OPSET,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    keep_unused_inputs: bool = True,
    weights: Weights = "include",
    external_data: bool | None = None,
    mode: Mode = "eval",
    fold_constants: bool = True,
    custom_opsets: Mapping[str, int] | None = None,
    translations: Mapping[Any, Callable[..., Any]] | None = None,
    allow_unproven: bool = False,
    verbose: bool = False,
    progress: Progress | None = None,
) -> Exported:
    """Export a PyTorch model to ONNX, and prove that it gives the model's own answers.

    Args:
        model: an `nn.Module`, a function, a TorchScript module or a `torch.export.ExportedProgram`.
        args: example inputs by position; a single tensor needs no tuple.
        kwargs: example inputs by name.
        output: where to save; nothing is written unless the proof passes.
        dynamic: which axes may vary, in any dialect: ``{"x": {0: "batch"}}``, torch's `dynamic_axes` and
            `dynamic_shapes`, ``"x:0=batch"``, or ``"auto"`` with several `examples`.
        examples: further example inputs, each what `args` may be; they join the proof.
        route: ``auto`` tries `export`, `script`, `trace` and takes the first that is proven.
        opset: the opset of the saved model, exactly.
        input_names: names for the inputs instead of the parameters' own.
        output_names: names for the outputs.
        keep_unused_inputs: keep inputs that the graph does not use.
        weights: ``include`` them, list them as ``inputs`` too, or ``omit`` them and expect them as inputs.
        external_data: keep weights in a file beside the model; by default only from 1.5 GiB on.
        mode: put the model into ``eval`` or ``train`` mode for the export, or ``keep`` the one it is in.
        fold_constants: simplify the graph and fold what does not depend on inputs.
        custom_opsets: versions for operator domains of your own.
        translations: ONNX translations for torch operators, as torch's `custom_translation_table`.
        allow_unproven: save even if the proof fails; the model's metadata says so.
        verbose: let torch's own messages through.
        progress: called with one line at each step.

    Returns:
        The model with its proof and the story of how it was made.

    Example:
        >>> exported = export(model, (x,), output="model.onnx", dynamic={"x": {0: "batch"}})
        >>> print(exported.proof)
    """
    job = _Job(
        model,
        args,
        kwargs,
        dynamic=dynamic,
        examples=examples,
        input_names=input_names,
        output_names=output_names,
        mode=mode,
        progress=progress,
    )
    _check_options(opset, weights)
    routes = choose.order(job.subject.model, route)
    target = files.check_target(output) if output is not None else None
    with job.opened():
        job.meet(allow_random=allow_unproven)
        memory.release()
        exporter = _Exporter(
            job,
            opset=opset,
            keep_unused=keep_unused_inputs,
            fold_constants=fold_constants and weights == "include",
            custom_opsets=dict(custom_opsets or {}),
            translations=dict(translations or {}),
            verbose=verbose,
        )
        best = exporter.run(routes, allow_unproven=allow_unproven)
    _set_weights(best.model, weights, job)
    exported = exporter.result(best, str(target) if target else None)
    if target is not None:
        job.say("saving")
        with silence():
            files.save(exported.model, target, external=external_data)
    return exported


def verify(
    model: str | os.PathLike[str] | ir.Model,
    against: Any,
    args: Any = (),
    *,
    kwargs: dict[str, Any] | None = None,
    dynamic: Any = None,
    examples: Sequence[Any] = (),
    mode: Mode = "eval",
    engine: str = "onnxruntime",
    progress: Progress | None = None,
) -> Proof:
    """Prove an existing ONNX model against the PyTorch model it should equal.

    Args:
        model: an ONNX file or a model in memory.
        against: the PyTorch model.
        args: example inputs; made up from the ONNX model's own inputs where none are given.
        kwargs: example inputs by name.
        dynamic: which axes may vary; by default those that have names in the ONNX model.
        examples: further example inputs.
        mode: the mode to judge the PyTorch model in.
        engine: what runs the ONNX model.
        progress: called with one line at each step.

    Returns:
        The proof, passed or not.
    """
    session = open_session(model, engine)
    subject = models.subject(against)
    args, kwargs = models.example_arguments(subject, args, kwargs)
    if not args and not kwargs:
        args, kwargs = _made_up_inputs(session, subject.target)
    job = _Job(against, args, kwargs, dynamic=dynamic, examples=examples, mode=mode, progress=progress)
    with job.opened():
        job.meet(
            names=_match_names(session, job.call),
            declared=_declared_dims(session) if dynamic is None else None,
        )
        job.say("proving")
        with silence():
            proof = job.examiner(engine).examine(_candidate(session, job.input_names, job.output_names))
        if proof.failures:
            graph = files.load(model) if not isinstance(model, ir.Model) else model
            proof = dataclasses.replace(proof, findings=(*proof.findings, *_other_weights(graph, subject.target)))
    return proof


def _other_weights(model: ir.Model, target: Any) -> list[Finding]:
    """The usual reason why nothing agrees: the file holds another training's weights."""
    own = target.state_dict() if isinstance(target, torch.nn.Module) else {}
    shared = [n for n in own if n in model.graph.initializers]
    other = [n for n in shared if not _same_weight(model.graph.initializers[n].const_value, own[n])]
    if not other:
        return []
    return [Finding(f"{len(other)} of {len(shared)} weights in the file are not the PyTorch model's", other[0])]


def _same_weight(stored: Any, own: torch.Tensor) -> bool:
    return stored is None or np.array_equal(stored.numpy(), to_numpy(own), equal_nan=stored.dtype.is_floating_point())


def _check_options(opset: int, weights: str) -> None:
    opsets.check_range(opset)
    if weights not in ("include", "inputs", "omit"):
        raise OptionError(f"weights={weights!r} is unknown", next_step="use include, inputs or omit")


# --- the model and its example --------------------------------------------------------------------------------------


class _Job:
    """The PyTorch side: the model, its example, its answers."""

    def __init__(
        self,
        model: Any,
        args: Any,
        kwargs: dict[str, Any] | None,
        *,
        dynamic: Any = None,
        examples: Sequence[Any] = (),
        input_names: Sequence[str] | None = None,
        output_names: Sequence[str] | None = None,
        mode: Mode = "eval",
        progress: Progress | None = None,
    ) -> None:
        if mode not in MODES:
            raise OptionError(f"there is no mode '{mode}'", next_step=f"use {', '.join(MODES)}")
        self.subject = models.subject(model)
        self.call = Call(self.subject.target, *models.example_arguments(self.subject, args, kwargs))
        models.check_devices(self.call)
        self.example_calls = [
            Call(self.subject.target, *models.example_arguments(self.subject, e, None)) for e in examples
        ]
        self.input_names = _chosen_names("input", input_names, self.call.names)
        self._wanted_outputs = output_names
        self._dynamic = dynamic
        self._mode: Mode = mode
        self._progress = progress or (lambda text: None)
        self.findings = [
            Finding(f"input '{f.name}' is no tensor: its value {f.value!r} is fixed in the graph")
            for f in self.call.fixed
            if as_tensor(f.value) is not None or isinstance(f.value, str)
        ]

    def say(self, text: str) -> None:
        self._progress(text)

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """The model in the mode asked for; as it was found afterwards."""
        with preserved(self.subject.target, self._mode) as snapshot:
            self.reference = Reference(self.call, snapshot)
            yield

    def meet(
        self,
        *,
        names: Sequence[str] | None = None,
        declared: dict[str, dict[int, Dim]] | None = None,
        allow_random: bool = False,
    ) -> None:
        """Ask the example once: does the model run, what does it give, does it repeat itself?"""
        self.say("running the PyTorch model")
        self.arrays = [to_numpy(t) for t in self.call.tensors]
        with silence():
            first = self._first_answer()
        if not first:
            raise SourceError("the model gives no tensor back", next_step="return at least one tensor from forward")
        own = _distinct(self.reference.output_names, self.call.names)
        self.output_names = _chosen_names("output", self._wanted_outputs, own)
        clash = set(self.input_names) & set(self.output_names)
        if clash:
            raise OptionError(f"'{min(clash)}' is given to an input and to an output")
        self.input_names = list(names or self.input_names)
        self.spec = self._read_dynamic(declared)
        self._first = first
        self._examiner = self._make_examiner("onnxruntime")
        with silence():
            if not allow_random:
                self._examiner.check_repeatable()
            self._check_dimensions(self._examiner.plan())

    def _check_dimensions(self, reports: Sequence[DimensionReport]) -> None:
        for report in reports:
            if report.refused and not report.accepted:
                raise DynamicError(
                    f"dimension '{report.name}' cannot vary: the PyTorch model refuses every other size",
                    where=f"{report.name} = {report.refused_sizes}: {report.message}",
                    next_step="leave it out of dynamic, or give bounds such as batch[1..64]",
                )

    def _first_answer(self) -> list[Array]:
        try:
            return self.reference(self.arrays)
        except Exception as error:
            lines = str(error).strip().splitlines()
            raise ForwardError(
                f"the PyTorch model raises {type(error).__name__} on the example: {lines[0] if lines else ''}",
                where=line_of_error(error) or None,
                next_step="run model(*inputs) in PyTorch until it works; shapes and dtypes are the usual cause",
            ) from error

    def _read_dynamic(self, declared: dict[str, dict[int, Dim]] | None) -> DynamicSpec:
        if declared is not None:
            own = dict(zip(self.input_names, self.call.names, strict=True))
            return DynamicSpec({own[name]: axes for name, axes in declared.items() if name in own})
        if isinstance(self._dynamic, str) and self._dynamic == "auto":
            if not self.example_calls:
                raise DynamicError(
                    'dynamic="auto" needs more than one example to see what varies',
                    next_step="give examples=[(other_input,), ...]",
                )
            return DynamicSpec(dynamic.infer([self.call, *self.example_calls]))
        if self._dynamic is None and self.subject.program is not None:
            return DynamicSpec(_program_dims(self.call, self.subject.program))
        return dynamic.read(self._dynamic, self.call, input_names=self.input_names, output_names=self.output_names)

    def proof_inputs(self) -> list[ProofInput]:
        return [
            ProofInput(shown, array, self.spec.inputs.get(own, {}))
            for shown, own, array in zip(self.input_names, self.call.names, self.arrays, strict=True)
        ]

    def examiner(self, engine: str = "onnxruntime") -> Examiner:
        return self._examiner if engine == "onnxruntime" else self._make_examiner(engine)

    def _make_examiner(self, engine: str) -> Examiner:
        return Examiner(
            self.reference,
            self.proof_inputs(),
            self.output_names,
            first=self._first,
            precision=models.precision(self.call),
            examples=[[to_numpy(t) for t in c.tensors] for c in self.example_calls],
            engine=engine,
        )

    def capture_tensors(self) -> tuple[torch.Tensor, ...]:
        """Inputs to capture with: torch freezes sizes 0 and 1, so dimensions of that size are made larger."""
        inputs = self.proof_inputs()
        small = [n for n, size in sampling.example_sizes(inputs).items() if size < 2]
        for size in (2, 3, 4, 8) if small else ():
            dims = sampling.roots(inputs)
            sizes = {n: size for n in small if dims[n].allows(size)}
            arrays = [sampling.sample(i, Question("capture", "random", 7, sizes)) for i in inputs]
            try:
                with silence():
                    self.reference(arrays)
            except Exception as error:  # noqa: BLE001 - this size is outside the model's domain; the next may not be
                self.say(f"capturing at size {size} is refused: {type(error).__name__}")
                continue
            return tuple(to_torch(a.copy()).to(t.device) for a, t in zip(arrays, self.call.tensors, strict=True))
        return tuple(t.detach().clone() for t in self.call.tensors)


def _chosen_names(kind: str, wanted: Sequence[str] | None, own: Sequence[str]) -> list[str]:
    """The user's names where given, checked for count and duplicates."""
    if wanted is None:
        return list(own)
    if isinstance(wanted, str) or len(wanted) != len(own):
        count = 1 if isinstance(wanted, str) else len(wanted)
        raise OptionError(
            f"{count} {kind} names given, the model has {len(own)} {kind}s",
            where=f"{kind}s: {', '.join(own)}",
            next_step="give one name for each, in this order",
        )
    twice = sorted({n for n in wanted if list(wanted).count(n) > 1})
    if twice or not all(wanted):
        raise OptionError(f"{kind} name '{twice[0]}' is given twice" if twice else f"an {kind} name is empty")
    return list(wanted)


def _distinct(outputs: Sequence[str], inputs: Sequence[str]) -> list[str]:
    """Output names that clash with no input and with no other output."""
    taken = set(inputs)
    names: list[str] = []
    for name in outputs:
        fresh, number = name, 1
        while fresh in taken:
            fresh = f"{name}_out" if number == 1 else f"{name}_out{number}"
            number += 1
        taken.add(fresh)
        names.append(fresh)
    return names


def _program_dims(call: Call, program: torch.export.ExportedProgram) -> dict[str, dict[int, Dim]]:
    """The dynamic axes of an ExportedProgram. Axes of one symbol share a name."""
    inputs = set(program.graph_signature.user_inputs)
    values = [n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder" and n.name in inputs]
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    ranges = {str(symbol): bounds for symbol, bounds in program.range_constraints.items()}
    names: dict[str, Dim] = {}
    dims: dict[str, dict[int, Dim]] = {}
    for name, value in zip(call.names, tensors, strict=True):
        for axis, size in enumerate(value.shape):
            symbol = str(size)
            if not isinstance(size, int) and symbol.isidentifier():
                dim = names.setdefault(symbol, _bounded(f"{name}_dim{axis}", ranges.get(symbol)))
                dims.setdefault(name, {})[axis] = dim
    return dims


def _bounded(name: str, bounds: Any) -> Dim:
    if bounds is None:
        return Dim(name)
    low = int(bounds.lower) if bounds.lower.is_number and bounds.lower < 2**31 else 0
    high = int(bounds.upper) if bounds.upper.is_number and bounds.upper < 2**31 else None
    return Dim(name, min=low, max=high)


# --- the attempts ---------------------------------------------------------------------------------------------------


class _Tried:
    """A model a route gave, with its proof."""

    def __init__(self, route: str, model: ir.Model, proof: Proof, findings: Sequence[Finding], problem: str) -> None:
        self.route = route
        self.model = model
        self.proof = proof
        self.findings = tuple(findings)
        self.problem = problem


class _Exporter:
    """Tries routes until one is proven."""

    def __init__(
        self,
        job: _Job,
        *,
        opset: int,
        keep_unused: bool,
        fold_constants: bool,
        custom_opsets: dict[str, int],
        translations: dict[Any, Callable[..., Any]],
        verbose: bool,
    ) -> None:
        self.job = job
        self.opset = opset
        self.keep_unused = keep_unused
        self.custom_opsets = custom_opsets
        self.attempts: list[Attempt] = []
        self.errors: list[RefusedError] = []
        self.unproven: list[_Tried] = []
        self.request = Request(
            job.call,
            job.capture_tensors(),
            job.spec.inputs,
            opset,
            fold_constants=fold_constants,
            translations=translations,
            custom_opsets=custom_opsets,
            program=job.subject.program,
            verbose=verbose,
        )

    def run(self, routes: Sequence[str], *, allow_unproven: bool) -> _Tried:
        for route in routes:
            started = time.perf_counter()
            self.job.say(f"route {route}: capturing")
            try:
                tried = self._try(route)
                reason = tried.problem
            except (CaptureError, OpsetError, EngineError) as error:
                self.errors.append(error)
                tried, reason = None, error.what + (f" ({error.where})" if error.where else "")
            outcome = "failed" if reason else "passed"
            attempt = Attempt(route, outcome, reason, round(time.perf_counter() - started, 2))  # type: ignore[arg-type]
            self.attempts.append(attempt)
            self.job.say(str(attempt))
            if tried is not None and not reason:
                return tried
            if tried is not None:
                self.unproven.append(tried)
        if allow_unproven and self.unproven:
            return max(self.unproven, key=lambda t: t.proof.count("pass"))
        raise self._refusal()

    def _try(self, route: str) -> _Tried:
        job = self.job
        captured = choose.load(route)(self.request)
        with silence(verbose=self.request.verbose):
            model = self._finish(captured)
            try:
                session = open_session(model)
            except EngineError as error:
                self.errors.append(error)
                problem = error.what + _origin_of(error.where, model)
                return _Tried(route, model, Proof((), (Finding(problem),)), [], problem)
        memory.release()
        job.say(f"route {route}: proving")
        with silence():
            proof = job.examiner().examine(
                _candidate(session, job.input_names, job.output_names),
                branch_rounds=BRANCH_ROUNDS if captured.suspects else 0,
            )
        interface.name_output_dims(model, dims=job.spec.inputs, spec=job.spec, observed=job.examiner().observed)
        problem = _problem(proof, model, captured, job)
        return _Tried(route, model, proof, _harmless(captured), problem)

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

    def result(self, best: _Tried, path: str | None) -> Exported:
        proven = not best.problem
        metadata.write(best.model, route=best.route, proof=best.proof, unproven="" if proven else best.problem)
        return Exported(
            model=best.model,
            route=best.route,
            attempts=tuple(self.attempts),
            proof=best.proof,
            inputs=tensor_infos(best.model.graph.inputs),
            outputs=tensor_infos(best.model.graph.outputs),
            findings=(*self.job.findings, *best.findings),
            path=path,
            opset=best.model.opset_imports.get("", 0),
            proven=proven,
        )

    def _refusal(self) -> RefusedError:
        """The error that says most: wrong answers before an opset out of reach before a failed capture."""
        story = "\n       ".join(f"route {a.route}: {a.reason}" for a in self.attempts)
        proofs = [t.proof for t in self.unproven if t.proof.cases]
        if proofs:
            return ProofError(
                "the ONNX model does not give the PyTorch model's answers; nothing was saved",
                proof=proofs[0],
                attempts=self.attempts,
                where=story,
                next_step="see the proof for the case that differs; --allow-unproven saves it all the same",
            )
        if self.unproven:
            return EngineError(
                "the engine cannot run the model, so that nothing can be proven; nothing was saved",
                where=story,
                next_step="try another opset or dtype; --allow-unproven saves it all the same",
            )
        blocked = [e for e in self.errors if isinstance(e, OpsetError)]
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
        last = self.errors[0]
        return CaptureError(
            "no route could capture the model",
            where=story,
            next_step=last.next_step or "change the line named above, or ask for one route with route=... to see more",
            attempts=self.attempts,
        )


def _candidate(
    session: Session, inputs: Sequence[str], outputs: Sequence[str]
) -> Callable[[Mapping[str, Array]], dict[str, Array]]:
    """The ONNX model as the examiner wants it; inputs it has dropped are left out."""
    wanted = {i.name for i in session.inputs}

    def ask(feeds: Mapping[str, Array]) -> dict[str, Array]:
        try:
            given = session.run({n: a for n, a in feeds.items() if n in wanted})
        except InputError as error:
            raise EngineError(error.what, where=error.where) from error
        if set(given) == set(outputs) or len(given) != len(outputs):
            return given
        return dict(zip(outputs, given.values(), strict=True))  # an older file under other names: by position

    return ask


def _problem(proof: Proof, model: ir.Model, captured: Captured, job: _Job) -> str:
    """Why this proof is not enough, in one line; empty when it is."""
    if not proof.failures:
        return _unproven_dimension(proof, job) or ("" if proof.passed else proof.verdict_line())
    worst = proof.failures[0]
    sizes = " ".join(f"{k}={v}" for k, v in worst.sizes.items())
    text = f"case '{worst.label}'" + (f" ({sizes})" if sizes else "") + f": {worst.note}"
    text += _origin_of(worst.note, model)
    if captured.suspects:
        text += "; " + "; ".join(str(s) for s in captured.suspects[:3])
    elif worst.sizes != sampling.example_sizes(job.proof_inputs()):
        lines = captured.fixing_lines()
        text += f"; sizes are fixed at {' and '.join(lines[-2:])}" if lines else ""
    return text


def _origin_of(text: str | None, model: ir.Model) -> str:
    """Where the node named in an engine's message comes from."""
    node = re.search(r"node '([^']+)'", text or "")
    origin = find_origin(model, node[1]) if node else None
    return f"; that node comes from {origin}" if origin is not None and str(origin) != "unknown" else ""


def _unproven_dimension(proof: Proof, job: _Job) -> str:
    """A dimension is proven only by a passing case at another size than the example's."""
    sizes = sampling.example_sizes(job.proof_inputs())
    for report in job.examiner().dimensions:
        moved = [c for c in proof.cases if c.sizes.get(report.name) not in (None, sizes[report.name])]
        if report.accepted and not any(c.verdict == "pass" for c in moved):
            return f"dimension '{report.name}' was not proven at any size but {sizes[report.name]}"
    return ""


def _harmless(captured: Captured) -> list[Finding]:
    return [Finding(f"{s.message}; no case showed it to matter", s.where) for s in captured.suspects]


def _set_weights(model: ir.Model, weights: Weights, job: _Job) -> None:
    """List the model's weights as inputs; without their values when they are to be omitted."""
    if weights == "include":
        return
    target = job.subject.target
    names = (
        set(dict(target.named_parameters())) | set(dict(target.named_buffers()))
        if isinstance(target, torch.nn.Module)
        else set()
    )
    for name, value in list(model.graph.initializers.items()):
        if name in names:
            if weights == "omit":
                del model.graph.initializers[name]
                value.const_value = None
            model.graph.inputs.append(value)


# --- verify an existing file ----------------------------------------------------------------------------------------


def _match_names(session: Session, call: Call) -> list[str]:
    """What the ONNX model calls each of the PyTorch model's inputs: by name where they agree, else by position."""
    shown = [i.name for i in session.inputs]
    if set(shown) <= set(call.names):
        return list(call.names)
    if len(shown) == len(call.names):
        return shown
    raise InputError(
        f"the ONNX model has {len(shown)} inputs, the PyTorch model got {len(call.names)}",
        where=f"{', '.join(shown)} and {', '.join(call.names)}",
        next_step="give the PyTorch model the same inputs",
    )


def _declared_dims(session: Session) -> dict[str, dict[int, Dim]]:
    """The axes that have names in the ONNX model."""
    return {
        i.name: {a: Dim(d) for a, d in enumerate(i.shape or ()) if isinstance(d, str) and d.isidentifier()}
        for i in session.inputs
    }


def _made_up_inputs(session: Session, target: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Random inputs of the ONNX model's own dtypes and shapes, dynamic axes at size 2."""
    from torchport.capture.inputs import InputSpec, build_inputs

    parameters = signature_of(target).parameters
    by_name = all(info.name.split(".")[0] in parameters for info in session.inputs)
    specs = []
    for info in session.inputs:
        if info.shape is None:
            raise FileError(f"input '{info.name}' has no shape to make an example from", next_step="give --input")
        shape = [d if isinstance(d, int) else 2 for d in info.shape]
        specs.append(InputSpec.tensor(info.name if by_name else None, info.dtype, shape))
    return build_inputs(specs)
