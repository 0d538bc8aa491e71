"""tp.export"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import onnx_ir as ir
import torch

from torchport import process
from torchport.capture.reference import Mode
from torchport.capture.routes.route import order
from torchport.conversion.attempts import Attempts
from torchport.conversion.subject import Job, Progress
from torchport.errors import OptionError
from torchport.files import onnx_files
from torchport.files.filesystem import check_target
from torchport.opset import convert as opsets
from torchport.process import silence
from torchport.results import Exported, Finding

DEFAULT_OPSET = 20

Weights = Literal["include", "inputs", "omit"]


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
        allow_unproven: save even if the proof fails; the model's metadata says so.
        verbose: let torch's own messages through.
        progress: called with one line at each step.

    Returns:
        The model with its proof and the story of how it was made.

    Example:
        >>> exported = export(model, (x,), output="model.onnx", dynamic={"x": {0: "batch"}})
        >>> print(exported.proof)
    """
    job = Job(
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
    _check_options(opset, weights, output, custom_opsets or {})
    routes = order(job.subject.model, route)
    target = check_target(output) if output is not None else None
    with job.opened():
        job.meet(allow_random=allow_unproven)
        process.release()
        attempts = Attempts(
            job,
            opset=opset,
            keep_unused=keep_unused_inputs,
            fold_constants=fold_constants,
            weights_apart=weights != "include",
            custom_opsets=dict(custom_opsets or {}),
            translations=dict(translations or {}),
            libraries=[libraries] if isinstance(libraries, (str, os.PathLike)) else list(libraries),
            verbose=verbose,
        )
        best = attempts.run(routes, allow_unproven=allow_unproven)
    findings = _set_weights(best.model, weights, job.subject.target)
    exported = attempts.result(best, str(target) if target else None, findings)
    if target is not None:
        job.say("saving")
        with silence():
            onnx_files.save(exported.model, target, external=external_data)
    return exported


def _check_options(opset: int, weights: str, output: Any, custom_opsets: Mapping[str, int]) -> None:
    if isinstance(opset, bool) or not isinstance(opset, int):
        raise OptionError(f"opset={opset!r} is no whole number", next_step="write opset=17")
    opsets.check_range(opset)
    if output is not None and not isinstance(output, (str, os.PathLike)):
        raise OptionError(f"output={output!r} is no path", next_step='write output="model.onnx"')
    if output is not None and Path(output).suffix in (".pt", ".pth", ".pt2", ".ts", ".py", ".npy", ".npz"):
        raise OptionError(f"output '{output}' ends like another kind of file", next_step="name it model.onnx")
    if custom_opsets.keys() & {"", "ai.onnx"}:
        raise OptionError("custom_opsets is for domains of your own", next_step="ONNX's own version is opset=N")
    if weights not in ("include", "inputs", "omit"):
        raise OptionError(f"weights={weights!r} is unknown", next_step="use include, inputs or omit")


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
