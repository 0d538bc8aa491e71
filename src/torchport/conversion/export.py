"""tp.export"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch

from torchport import process
from torchport.capture import interface, models
from torchport.capture.reference import Mode
from torchport.capture.routes.route import order
from torchport.conversion.attempts import Attempts
from torchport.conversion.options import DEFAULT_OPSET, TORCH_NAMES, ExportOptions, Progress, Weights
from torchport.conversion.subject import opened
from torchport.engines.registry import DEFAULT
from torchport.errors import OptionError, ProofError
from torchport.facade import known_arguments
from torchport.files import onnx_files
from torchport.files.filesystem import check_target
from torchport.files.writer import PROTOBUF_LIMIT
from torchport.process import silence
from torchport.results import Dim, Exported, Finding
from torchport.terminal import human_bytes
from torchport.verification.bounds import dims_text


@known_arguments("tp.export", TORCH_NAMES, third="output")
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
    libraries: Sequence[str | os.PathLike[str]] = (),
    target: str | None = DEFAULT,
    rtol: float | Mapping[str, float] | None = None,
    atol: float | Mapping[str, float] | None = None,
    narrow: bool = False,
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
        route: ``auto`` tries `export`, `rewrite`, `script`, `trace` and takes the first that is proven.
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
        libraries: operator libraries for ONNX Runtime that the proof may load, by path; those of operators defined with
            `tp.operator` need not be named.
        target: the engine that the model is for. Its known faults are worked around, it proves the model, and the
            model's metadata lists the workarounds. None proves and saves the plain graph.
        rtol: the relative tolerance of the proof, for all outputs or by output name; by default by dtype. The
            model's metadata has it.
        atol: the absolute tolerance, as a part of the output's largest number.
        narrow: where the model is wrong at some sizes, bound the dimensions to those at which it is right.
        allow_unproven: save even if the proof fails; the model's metadata says so.
        verbose: let torch's own messages through.
        progress: called with one line at each step.

    Returns:
        The model with its proof and the story of how it was made.

    Example:
        >>> exported = export(model, (x,), output="model.onnx", dynamic={"x": {0: "batch"}})
        >>> print(exported.proof)
    """
    options = ExportOptions(
        output=output,
        dynamic=dynamic,
        examples=examples,
        route=route,
        opset=opset,
        input_names=input_names,
        output_names=output_names,
        keep_unused_inputs=keep_unused_inputs,
        weights=weights,
        external_data=external_data,
        mode=mode,
        fold_constants=fold_constants,
        custom_opsets=custom_opsets,
        translations=translations,
        libraries=libraries,
        target=target,
        rtol=rtol,
        atol=atol,
        narrow=narrow,
        allow_unproven=allow_unproven,
        verbose=verbose,
        progress=progress,
    )
    return _export(model, args, kwargs, options)


def _export(model: Any, args: Any, kwargs: dict[str, Any] | None, options: ExportOptions) -> Exported:
    subject = models.subject(model)
    call = models.call(subject, args, kwargs)
    routes = order(subject.model, options.route)
    path = check_target(options.output) if options.output is not None else None
    narrowed: dict[str, dict[int, Dim]] = {}
    _check_inline(subject.target, options)
    with opened(subject, call, options, engine=options.engine, allow_random=options.allow_unproven) as source:
        process.release()
        attempts = Attempts(source, options)
        try:
            best = attempts.run(routes)
            if path is not None and not best.problem:
                interface.check_ranks(best.model, source.verifier.observed)
        except ProofError as error:
            if not options.narrow or not error.proof.bounds:
                raise
            narrowed = dict(attempts.narrowed(error.proof.bounds))
            options.say(f"narrowing to {', '.join(dims_text(n, d) for n, d in narrowed.items())}")
    if narrowed:
        return _export(model, args, kwargs, dataclasses.replace(options, dynamic=narrowed, narrow=False))
    findings = _set_weights(best.model, options.weights, subject.target)
    exported = attempts.result(best, str(path) if path else None, findings)
    if path is not None:
        options.say("saving")
        with silence():
            onnx_files.save(exported.model, path, external=options.external_data)
    return exported


def _check_inline(target: Any, options: ExportOptions) -> None:
    """Refuse weights in the `.onnx` itself that no such file can hold, before anything is captured."""
    if options.external_data is not False or options.weights == "omit" or not isinstance(target, torch.nn.Module):
        return
    tensors = {id(t): t for t in (*target.parameters(), *target.buffers())}.values()
    size = sum(t.numel() * t.element_size() for t in tensors)
    if size > PROTOBUF_LIMIT:
        raise OptionError(
            f"the model has {human_bytes(size)} of weights: a single .onnx file holds at most 2 GiB",
            where="external_data=False, --inline-data",
            next_step="leave it out: weights that do not fit go into a data file beside the model",
        )


def _set_weights(model: ir.Model, weights: Weights, target: Any) -> list[Finding]:
    """List the model's weights as inputs, without their values when they are to be omitted.

    Returns:
        A finding for each weight that could not be: unused in the graph, or a constant of it.
    """
    if weights == "include" or not isinstance(target, torch.nn.Module):
        return []
    own = [*target.named_parameters(remove_duplicate=False), *target.named_buffers(remove_duplicate=False)]
    names = {name for name, _ in own}
    listed: set[str] = set()
    for name, value in list(model.graph.initializers.items()):
        bare = name.removeprefix("model.")  # where an input has the weight's own name
        if name in names or bare in names:
            if weights == "omit":
                del model.graph.initializers[name]
                value.const_value = None
            model.graph.inputs.append(value)
            listed.add(name if name in names else bare)
    reached = {id(tensor) for name, tensor in own if name in listed}
    return [
        Finding(f"weight '{name}' is no input: the graph does not use it, or holds it as a constant")
        for name, tensor in target.named_parameters()
        if id(tensor) not in reached
    ]
