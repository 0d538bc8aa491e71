"""The PyTorch side of an export or a verification: the model, its example, its outputs, and the verifier."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from torchport.capture import dynamic_dims, models
from torchport.capture.dynamic_dims import DynamicSpec
from torchport.capture.models import Subject
from torchport.capture.origins import line_of_error
from torchport.capture.reference import Mode, Reference, preserved, random_call
from torchport.capture.structure import Call, as_tensor
from torchport.conversion.options import ExampleOptions
from torchport.engines.registry import DEFAULT
from torchport.errors import (
    DynamicError,
    ForwardError,
    OptionError,
    RandomModelError,
    SourceError,
    TorchportError,
    did_you_mean,
)
from torchport.facade import shown
from torchport.numerics.tolerance import Requested
from torchport.process import silence
from torchport.results import Dim, Finding
from torchport.tensors import Array, to_numpy, to_torch
from torchport.verification import cases
from torchport.verification.values import CaseSpec, ProofInput, example_sizes, ladder, sample
from torchport.verification.verifier import DimensionReport, Verifier

_MANY = 9  # times a number of which a size is a multiple: more than a window, after all halvings

_MOST_NUMBERS = 1 << 27  # of inputs that are never filled

Declared = dict[str, dict[int, Dim]]


@dataclasses.dataclass(frozen=True)
class TorchModel:
    """A PyTorch model that has run on its example.

    Attributes:
        subject: the model.
        call: the model with its example, flat.
        reference: runs the model on arrays.
        inputs: the example's arrays, named and with their dynamic axes as the ONNX model has them.
        output_names: names of the outputs in the ONNX model.
        spec: the dynamic axes.
        verifier: runs the cases, and knows the sizes that the model accepts.
        findings: what the user should know about the example.
        options: how the model was run.
    """

    subject: Subject
    call: Call
    reference: Reference
    inputs: tuple[ProofInput, ...]
    output_names: tuple[str, ...]
    spec: DynamicSpec
    verifier: Verifier
    findings: tuple[Finding, ...]
    options: ExampleOptions

    @property
    def input_names(self) -> list[str]:
        return [i.name for i in self.inputs]

    @property
    def steps(self) -> dict[str, int]:
        """The number of which PyTorch takes multiples only, by dimension."""
        return {report.name: report.step for report in self.verifier.dimensions if report.step > 1}

    def capture_tensors(self) -> tuple[torch.Tensor, ...]:
        """Return inputs to capture with: torch freezes sizes 0 and 1, so dimensions of that size are made larger."""
        small = [n for n, size in example_sizes(self.inputs).items() if size < 2]
        for size, kind in itertools.product((2, 3, 4, 8), ladder(self.inputs)) if small else ():
            dims = cases.roots(self.inputs)
            sizes = {n: size for n in small if dims[n].allows(size)}
            arrays = [sample(i, CaseSpec("capture", kind, 7, sizes)) for i in self.inputs]
            try:
                with silence():
                    self.reference(arrays)
            except Exception as error:  # noqa: BLE001 - this size is outside the model's domain; the next may not be
                self.options.say(f"capturing at size {size} is refused: {type(error).__name__}")
                continue
            return self._as_tensors(arrays)
        return tuple(t.detach().clone() for t in self.call.tensors)

    def tensors_at_other_sizes(self) -> Iterator[tuple[torch.Tensor, ...]]:
        """Return inputs to capture with whose dynamic dimensions all have other sizes than the example's."""
        yield from map(self._as_tensors, self.verifier.at_other_sizes())

    def tensors_for_steps(self) -> Iterator[tuple[tuple[torch.Tensor, ...], bool]]:
        """Return inputs to capture with, at many times the numbers of which sizes are multiples and at twice, each with
        whether the model ran on them.

        Where a network halves its input five times, a window or a size of 1 at the end would be special. Other sizes
        stay as they are unless torch would freeze them. A run at many times may take too long; a capture computes no
        numbers, so that any will do.
        """
        example, accepted = example_sizes(self.inputs), {d.name: d.accepted for d in self.verifier.dimensions}
        frozen = {name: min((n for n in accepted[name] if n > 1), default=1) for name, n in example.items() if n < 2}
        many = {name: step * (_MANY + n) for n, (name, step) in enumerate(self.steps.items())}
        own = {name: (example[name], *accepted[name]) for name in self.steps}
        few = {name: min((n for n in own[name] if n >= 2 * step), default=0) for name, step in self.steps.items()}
        for wanted in (many, few):
            sizes = {name: size for name, size in {**frozen, **wanted}.items() if size > example[name]}
            arrays = self.verifier.at_sizes(sizes)
            if arrays is not None:
                yield self._as_tensors(arrays), True
            elif sizes and wanted is many and not self.verifier.affords(sizes):
                yield from self._without_numbers({**example, **sizes})

    def _without_numbers(self, sizes: dict[str, int]) -> Iterator[tuple[tuple[torch.Tensor, ...], bool]]:
        """Return inputs of these sizes, if they are of a kind whose values do not matter and not huge."""
        dims, shapes = cases.roots(self.inputs), [given.shape(sizes) for given in self.inputs]
        are_allowed = all(dims[name].allows(size) for name, size in sizes.items())
        numbers = sum(math.prod(shape) for shape in shapes)
        if are_allowed and numbers <= _MOST_NUMBERS and all(t.is_floating_point() for t in self.call.tensors):
            yield tuple(t.new_empty(shape) for t, shape in zip(self.call.tensors, shapes, strict=True)), False

    def _as_tensors(self, arrays: Sequence[Array]) -> tuple[torch.Tensor, ...]:
        return tuple(to_torch(a.copy()).to(t.device) for a, t in zip(arrays, self.call.tensors, strict=True))


@contextlib.contextmanager
def opened(
    subject: Subject,
    call: Call,
    options: ExampleOptions,
    *,
    names: Sequence[str] | None = None,
    declared: Declared | None = None,
    engine: str = DEFAULT,
    allow_random: bool = False,
) -> Iterator[TorchModel]:
    """Run a model on its example, in the mode of the options; the model is as before afterwards.

    Args:
        subject: the model.
        call: the model with its example.
        options: how to run it.
        names: the ONNX model's names of the inputs; the options' or the parameters' own if None.
        declared: the ONNX model's dynamic axes, by input; the options' if None.
        engine: the engine that will run the ONNX model.
        allow_random: take a model that does not repeat its outputs.

    Raises:
        ForwardError: the model fails on the example.
        DynamicError: a dimension cannot vary.
        RandomModelError: the model gives other outputs each time.
    """
    models.check_devices(call)
    examples = [models.call(subject, e) for e in options.examples]
    own_names = _chosen_names("input", options.input_names, call.names)
    with preserved(subject.target, options.mode) as snapshot:
        options.say("running the PyTorch model")
        reference = Reference(call, snapshot)
        first, seconds = _first_outputs(reference, [to_numpy(t) for t in call.tensors])
        output_names = _output_names(options, reference, call, own_names)
        input_names = list(names or own_names)
        spec = _read_dynamic(subject, call, examples, options, declared, (input_names, output_names))
        _check_output_axes(spec, output_names, first)
        inputs = _proof_inputs(call, input_names, spec)
        verifier = Verifier(
            reference,
            inputs,
            output_names,
            first=first,
            precision=models.precision(call),
            examples=[[to_numpy(t) for t in c.tensors] for c in examples],
            engine=engine,
            seconds=seconds,
            precise=reference.in_float64,
            requested=_requested(options, output_names),
        )
        try:
            _check_example(verifier, inputs, allow_random=allow_random)
        except RandomModelError as error:
            raise _random_model(error, reference, inputs, options.mode) from error
        findings = (*_fixed_findings(call), *_complex_findings(reference, call, input_names, output_names))
        yield TorchModel(subject, call, reference, inputs, tuple(output_names), spec, verifier, findings, options)


def _proof_inputs(call: Call, names: Sequence[str], spec: DynamicSpec) -> tuple[ProofInput, ...]:
    return tuple(
        ProofInput(name, to_numpy(tensor), spec.inputs.get(own, {}))
        for name, own, tensor in zip(names, call.names, call.tensors, strict=True)
    )


def _random_model(
    error: RandomModelError, reference: Reference, inputs: Sequence[ProofInput], mode: Mode
) -> RandomModelError:
    """Return the error with the line that draws the random numbers, and with advice that fits it."""
    with silence():
        name, line = random_call(lambda: reference([i.example for i in inputs]))
    if not name:
        return error
    if mode != "eval":
        advice = "export it in eval mode: mode='eval', --mode eval"
    elif "dropout" in name:
        advice = "the model is in eval mode, but this call drops always: pass training=self.training, or use nn.Dropout"
    else:
        advice = "the model is in eval mode: take the random numbers as an input instead of drawing them inside"
    return RandomModelError(f"{error.what}: '{name}' draws random numbers", where=line or error.where, next_step=advice)


def _check_example(verifier: Verifier, inputs: Sequence[ProofInput], *, allow_random: bool) -> None:
    """Check that every dimension can vary and that the model repeats its outputs."""
    with silence():
        dimensions = verifier.plan()
        if not allow_random:
            verifier.check_repeatable()
    _check_dimensions(dimensions, inputs)


def _first_outputs(reference: Reference, arrays: list[Array]) -> tuple[list[Array], float]:
    """Return the outputs for the example, and the seconds they took: of the processor, if others use it too."""
    started, computed = time.perf_counter(), time.process_time()
    try:
        with silence():
            outputs = reference(arrays)
    except TorchportError:  # its output is nothing for ONNX, and the error says why
        raise
    except (Exception, SystemExit) as error:
        lines = str(error).strip().splitlines()
        raise ForwardError(
            f"the PyTorch model raises {type(error).__name__} on the example: {lines[0] if lines else ''}",
            where=line_of_error(error) or None,
            next_step="run model(*inputs) in PyTorch until it works",
        ) from error
    if not outputs:
        raise SourceError("the model gives no tensor back", next_step="return at least one tensor from forward")
    return outputs, min(time.perf_counter() - started, time.process_time() - computed)


def _output_names(options: ExampleOptions, reference: Reference, call: Call, input_names: Sequence[str]) -> list[str]:
    chosen = _chosen_names("output", options.output_names, _distinct(reference.output_names, call.names))
    clash = set(input_names) & set(chosen)
    if clash:
        raise OptionError(
            f"'{min(clash)}' is given to an input and to an output", next_step="give the output another name"
        )
    return chosen


def _requested(options: ExampleOptions, output_names: Sequence[str]) -> Requested:
    """Read the tolerances of the options, and check that the outputs they name are there."""
    requested = Requested.read(options.rtol, options.atol)
    for name in sorted(requested.names - {*output_names}):
        raise OptionError(
            f"a tolerance is given for '{name}', which is no output",
            next_step=did_you_mean(name, output_names, f"the outputs are {', '.join(output_names)}", most=1),
        )
    return requested


def _check_output_axes(spec: DynamicSpec, output_names: Sequence[str], first: list[Array]) -> None:
    for name, axes in spec.outputs.items():
        rank = first[list(output_names).index(name)].ndim
        wrong = [a for a in axes if not -rank <= a < rank]
        if wrong:
            raise DynamicError(
                f"axis {wrong[0]} of output '{name}' is out of range: it has rank {rank}",
                next_step="count the axes from 0",
            )


def _check_dimensions(reports: Sequence[DimensionReport], inputs: Sequence[ProofInput]) -> None:
    for report in reports:
        if report.refused and not set(report.accepted) - {1}:  # at size 1 it was broadcast, not moved
            if (counted := _numbers_along(report.name, inputs)) is not None:
                raise DynamicError(
                    f"dimension '{report.name}' cannot be tried: at every other size the PyTorch model refuses the "
                    f"numbers made up for '{counted}'",
                    where=f"{report.name} = {report.refused_sizes}: {report.message}",
                    next_step="compute them in the model if they must fit other inputs, or leave it out of dynamic",
                )
            raise DynamicError(
                f"dimension '{report.name}' cannot vary: the PyTorch model refuses every other size",
                where=f"{report.name} = {report.refused_sizes}: {report.message}",
                next_step=_same_size(report.name, inputs) or "leave it out of dynamic",
            )


def _numbers_along(root: str, inputs: Sequence[ProofInput]) -> str | None:
    """Return an input of one whole number a step of the dimension: its values may have to fit others."""
    for given in inputs:
        array = given.example
        if array.dtype.kind in "iu" and array.ndim == 1 and any(d.root == root for d in given.dims.values()):
            return given.name
    return None


def _same_size(root: str, inputs: Sequence[ProofInput]) -> str:
    """Return advice about axes of the same size that are not dynamic: they may be the same dimension."""
    size = example_sizes(inputs)[root]
    places = [
        f"{given.name}:{axis}={root}"
        for given in inputs
        for axis, n in enumerate(given.example.shape)
        if n == size and axis not in given.dims
    ]
    return f"leave it out, or if these are the same dimension add {', '.join(places[:3])}" if places else ""


def _read_dynamic(
    subject: Subject,
    call: Call,
    examples: Sequence[Call],
    options: ExampleOptions,
    declared: Declared | None,
    names: tuple[list[str], list[str]],
) -> DynamicSpec:
    """Return the dynamic axes: the ONNX model's, those in which examples differ, the program's, or the user's."""
    input_names, output_names = names
    if declared is not None:
        own = dict(zip(input_names, call.names, strict=True))
        return DynamicSpec({own[name]: axes for name, axes in declared.items() if name in own})
    if isinstance(options.dynamic, str) and options.dynamic == "auto":
        if not examples:
            raise DynamicError(
                'dynamic="auto" needs more than one example to see what varies',
                next_step="give examples=[(other_input,), ...]",
            )
        return DynamicSpec(dynamic_dims.infer([call, *examples]))
    if options.dynamic is None and subject.program is not None:
        return DynamicSpec(_program_dims(call, subject.program))
    return dynamic_dims.read(options.dynamic, call, input_names=input_names, output_names=output_names)


def _fixed_findings(call: Call) -> list[Finding]:
    return [
        Finding(f"input '{f.name}' is no tensor: its value {f.value!r} is fixed in the graph")
        for f in call.fixed
        if as_tensor(f.value) is not None or isinstance(f.value, str)
    ]


def _complex_findings(
    reference: Reference, call: Call, input_names: Sequence[str], output_names: Sequence[str]
) -> list[Finding]:
    own = reference.output_names
    outputs = [output_names[own.index(name)] for name in reference.complex_outputs]
    inputs = [n for n, tensor in zip(input_names, call.tensors, strict=True) if tensor.is_complex()]
    named = [("input", name) for name in inputs] + [("output", name) for name in outputs]
    return [
        Finding(f"{kind} '{name}' is complex: a last axis of two holds its real and imaginary parts")
        for kind, name in named
    ]


def _chosen_names(kind: str, wanted: Sequence[str] | None, own: Sequence[str]) -> list[str]:
    """The user's names where given, checked for count and duplicates."""
    if wanted is None:
        return list(own)
    if isinstance(wanted, str) or not isinstance(wanted, Sequence):
        raise OptionError(
            f"{kind}_names is a list of names, not {shown(wanted)}",
            next_step=f"write {kind}_names={[wanted] if isinstance(wanted, str) else list(own)}",
        )
    if len(wanted) != len(own):
        raise OptionError(
            f"{len(wanted)} {kind} names given, the model has {len(own)} {kind}s",
            where=f"{kind}s: {', '.join(own)}",
            next_step="give one name for each, in this order",
        )
    if not all(isinstance(n, str) for n in wanted):
        raise OptionError(f"{kind} names are texts, not {shown(wanted)}", next_step=f'write {kind}_names=["name"]')
    twice = sorted({n for n in wanted if list(wanted).count(n) > 1})
    if twice or not all(wanted):
        raise OptionError(
            f"{kind} name '{twice[0]}' is given twice" if twice else f"an {kind} name is empty",
            next_step="give each a name of its own",
        )
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
