"""The PyTorch side of an export or a verification: the model, its example, its answers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from torchport.capture import dynamic_dims, models
from torchport.capture.dynamic_dims import DynamicSpec
from torchport.capture.reference import MODES, Mode, Reference, preserved
from torchport.capture.source_lines import line_of_error
from torchport.capture.structure import Call, as_tensor
from torchport.engines.registry import DEFAULT
from torchport.errors import DynamicError, ForwardError, OptionError, SourceError, TorchportError
from torchport.process import silence
from torchport.results import Dim, Finding
from torchport.tensors import Array, to_numpy, to_torch
from torchport.verification import cases
from torchport.verification.cases import ProofInput, Question
from torchport.verification.verifier import DimensionReport, Examiner

Progress = Callable[[str], None]

_COSTLY = 5.0  # seconds of one run


class Job:
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
        self.call = models.call(self.subject, args, kwargs)
        models.check_devices(self.call)
        self.example_calls = [models.call(self.subject, e) for e in examples]
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
        started = time.perf_counter()
        with silence():
            first = self._first_answer()
        self._costly = time.perf_counter() - started > _COSTLY
        if not first:
            raise SourceError("the model gives no tensor back", next_step="return at least one tensor from forward")
        own = _distinct(self.reference.output_names, self.call.names)
        self.output_names = _chosen_names("output", self._wanted_outputs, own)
        clash = set(self.input_names) & set(self.output_names)
        if clash:
            raise OptionError(f"'{min(clash)}' is given to an input and to an output")
        self.input_names = list(names or self.input_names)
        self.findings += _complex_findings(self)
        self.spec = self._read_dynamic(declared)
        self._check_output_axes(first)
        self._first = first
        self._examiner = self._make_examiner(DEFAULT)
        with silence():
            dimensions = self._examiner.plan()
            if not allow_random:
                self._examiner.check_repeatable()
        self._check_dimensions(dimensions)

    def _check_output_axes(self, first: list[Array]) -> None:
        for name, axes in self.spec.outputs.items():
            rank = first[self.output_names.index(name)].ndim
            wrong = [a for a in axes if not -rank <= a < rank]
            if wrong:
                raise DynamicError(f"axis {wrong[0]} of output '{name}' is out of range: it has rank {rank}")

    def _check_dimensions(self, reports: Sequence[DimensionReport]) -> None:
        for report in reports:
            if report.refused and not set(report.accepted) - {1}:  # at size 1 it was broadcast, not moved
                if (counted := self._numbers_along(report.name)) is not None:
                    raise DynamicError(
                        f"dimension '{report.name}' cannot be tried: at every other size the PyTorch model refuses the "
                        f"numbers made up for '{counted}'",
                        where=f"{report.name} = {report.refused_sizes}: {report.message}",
                        next_step="compute them in the model if they must fit other inputs, or leave it out of dynamic",
                    )
                raise DynamicError(
                    f"dimension '{report.name}' cannot vary: the PyTorch model refuses every other size",
                    where=f"{report.name} = {report.refused_sizes}: {report.message}",
                    next_step=self._same_size(report.name) or "leave it out of dynamic",
                )

    def _numbers_along(self, root: str) -> str | None:
        """An input of one whole number a step of the dimension: its values may have to fit others."""
        for name, own, array in zip(self.input_names, self.call.names, self.arrays, strict=True):
            if (
                array.dtype.kind in "iu"
                and array.ndim == 1
                and any(d.root == root for d in self.spec.inputs.get(own, {}).values())
            ):
                return name
        return None

    def _same_size(self, root: str) -> str:
        """Axes of the same size that were not said to vary: they may be the same dimension."""
        size = cases.example_sizes(self.proof_inputs())[root]
        places = [
            f"{name}:{axis}={root}"
            for name, own, array in zip(self.input_names, self.call.names, self.arrays, strict=True)
            for axis, n in enumerate(array.shape)
            if n == size and axis not in self.spec.inputs.get(own, {})
        ]
        return f"leave it out, or if these are the same dimension add {', '.join(places[:3])}" if places else ""

    def _first_answer(self) -> list[Array]:
        try:
            return self.reference(self.arrays)
        except TorchportError:  # its answer is nothing for ONNX, and it says why
            raise
        except (Exception, SystemExit) as error:
            lines = str(error).strip().splitlines()
            raise ForwardError(
                f"the PyTorch model raises {type(error).__name__} on the example: {lines[0] if lines else ''}",
                where=line_of_error(error) or None,
                next_step="run model(*inputs) in PyTorch until it works",
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
            return DynamicSpec(dynamic_dims.infer([self.call, *self.example_calls]))
        if self._dynamic is None and self.subject.program is not None:
            return DynamicSpec(_program_dims(self.call, self.subject.program))
        return dynamic_dims.read(self._dynamic, self.call, input_names=self.input_names, output_names=self.output_names)

    def proof_inputs(self) -> list[ProofInput]:
        return [
            ProofInput(shown, array, self.spec.inputs.get(own, {}))
            for shown, own, array in zip(self.input_names, self.call.names, self.arrays, strict=True)
        ]

    def examiner(self, engine: str = DEFAULT) -> Examiner:
        return self._examiner if engine == DEFAULT else self._make_examiner(engine)

    def _make_examiner(self, engine: str) -> Examiner:
        return Examiner(
            self.reference,
            self.proof_inputs(),
            self.output_names,
            first=self._first,
            precision=models.precision(self.call),
            examples=[[to_numpy(t) for t in c.tensors] for c in self.example_calls],
            engine=engine,
            costly=self._costly,
        )

    def capture_tensors(self) -> tuple[torch.Tensor, ...]:
        """Inputs to capture with: torch freezes sizes 0 and 1, so dimensions of that size are made larger."""
        inputs = self.proof_inputs()
        small = [n for n, size in cases.example_sizes(inputs).items() if size < 2]
        for size in (2, 3, 4, 8) if small else ():
            dims = cases.roots(inputs)
            sizes = {n: size for n in small if dims[n].allows(size)}
            arrays = [cases.sample(i, Question("capture", "random", 7, sizes)) for i in inputs]
            try:
                with silence():
                    self.reference(arrays)
            except Exception as error:  # noqa: BLE001 - this size is outside the model's domain; the next may not be
                self.say(f"capturing at size {size} is refused: {type(error).__name__}")
                continue
            return tuple(to_torch(a.copy()).to(t.device) for a, t in zip(arrays, self.call.tensors, strict=True))
        return tuple(t.detach().clone() for t in self.call.tensors)


def _complex_findings(job: Job) -> list[Finding]:
    own = job.reference.output_names
    outputs = [job.output_names[own.index(name)] for name in job.reference.complex_outputs]
    inputs = [n for n, tensor in zip(job.input_names, job.call.tensors, strict=True) if tensor.is_complex()]
    named = [("input", name) for name in inputs] + [("output", name) for name in outputs]
    return [
        Finding(f"{kind} '{name}' is complex: a last axis of two holds its real and imaginary parts")
        for kind, name in named
    ]


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
    if not all(isinstance(n, str) for n in wanted):
        raise OptionError(f"{kind} names are texts, not {wanted!r}", next_step=f'write {kind}_names=["name"]')
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
