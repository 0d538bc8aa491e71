"""tp.verify"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch

from torchport.capture import models
from torchport.capture.reference import Mode
from torchport.capture.structure import Call, signature_of
from torchport.conversion.options import TORCH_NAMES, ExampleOptions, Progress
from torchport.conversion.subject import opened
from torchport.engines.registry import DEFAULT
from torchport.engines.session import Session, open_session
from torchport.errors import InputError
from torchport.facade import known_arguments, shown
from torchport.files import onnx_files
from torchport.inputs.binding import nested
from torchport.inputs.create import accepted
from torchport.irtools.dims import roots_in
from torchport.process import silence
from torchport.results import Finding, Proof
from torchport.tensors import to_numpy, to_torch
from torchport.verification.equivalence import candidate, declared_dims


@known_arguments("tp.verify", TORCH_NAMES)
def verify(
    model: str | os.PathLike[str] | ir.Model,
    against: Any,
    args: Any = (),
    *,
    kwargs: dict[str, Any] | None = None,
    dynamic: Any = None,
    examples: Sequence[Any] = (),
    mode: Mode = "eval",
    engine: str = DEFAULT,
    libraries: Sequence[str | os.PathLike[str]] = (),
    rtol: float | Mapping[str, float] | None = None,
    atol: float | Mapping[str, float] | None = None,
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
        libraries: operator libraries it may load, by path.
        rtol: the relative tolerance, for all outputs or by output name; by default by dtype.
        atol: the absolute tolerance, as a part of the output's largest number.
        progress: called with one line at each step.

    Returns:
        The proof, passed or not.
    """
    check_order(model, against)
    session = open_session(model, engine, libraries=libraries)
    roots = roots_in(onnx_files.as_model(model))
    subject = models.subject(against)
    args, kwargs = models.example_arguments(subject, args, kwargs)
    if not args and not kwargs:
        args, kwargs = _made_up_inputs(session, subject.target, roots)
    call = models.call(subject, args, kwargs)
    options = ExampleOptions(dynamic=dynamic, examples=examples, mode=mode, rtol=rtol, atol=atol, progress=progress)
    declared = declared_dims(session, roots) if dynamic is None else None
    with opened(subject, call, options, names=_match_names(session, call), declared=declared, engine=engine) as source:
        options.say("proving")
        with silence():
            proof = source.verifier.verify(candidate(session, source.input_names, source.output_names))
        ran = tuple(Finding(f"{name} has no kernel: PyTorch ran it for the proof") for name in session.in_python)
        proof = dataclasses.replace(proof, findings=(*proof.findings, *ran))
        if proof.failures:
            graph = onnx_files.load(model) if not isinstance(model, ir.Model) else model
            proof = dataclasses.replace(proof, findings=(*proof.findings, *_other_weights(graph, subject.target)))
    return proof


def check_order(model: Any, against: Any) -> None:
    """Notice two arguments that were swapped, and two ONNX models.

    Raises:
        InputError: the PyTorch model is an ONNX model.
    """
    if not is_onnx(against):
        return
    texts = isinstance(model, str) and isinstance(against, str)
    if is_onnx(model):
        raise InputError(
            f"{shown(against)} is an ONNX model: there is no PyTorch model to prove {shown(model)} against",
            next_step=f"compare two ONNX models with: torchport compare {against} {model}"
            if texts
            else "compare two ONNX models with tp.compare(a, b)",
        )
    raise InputError(
        "the arguments are swapped: the ONNX model comes first, the PyTorch model is what it is held against",
        next_step=f"torchport verify {against} --against {model}"
        if texts
        else f"tp.verify({shown(against)}, model): the ONNX model first",
    )


def is_onnx(given: Any) -> bool:
    """Check that what a user gives is an ONNX model: a path or a model in memory."""
    if isinstance(given, (str, os.PathLike)):
        return os.fspath(given).lower().endswith(".onnx")
    return isinstance(given, (ir.Model, onnx.ModelProto))


def _other_weights(model: ir.Model, target: Any) -> list[Finding]:
    """The usual reason why nothing agrees: the file holds another training's weights."""
    own = target.state_dict() if isinstance(target, torch.nn.Module) else {}
    # A weight of equal numbers tells nothing: it was never trained.
    shared = [n for n in own if n in model.graph.initializers and own[n].unique().numel() > 1]
    same = [n for n in shared if _same_weight(model.graph.initializers[n].const_value, own[n])]
    if same or not shared:
        return []  # those that differ may have had a batch norm folded in
    return [Finding("the weights in the file are not the PyTorch model's", shared[0])]


def _same_weight(stored: Any, own: torch.Tensor) -> bool:
    return stored is None or np.array_equal(stored.numpy(), to_numpy(own), equal_nan=stored.dtype.is_floating_point())


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


def _made_up_inputs(session: Session, target: Any, roots: Sequence[str]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return random inputs of the ONNX model's own dtypes and shapes, by name where the PyTorch model has these."""
    arrays = accepted(session.inputs, lambda given: session(*given), roots)
    tensors = {info.name: to_torch(a) for info, a in zip(session.inputs, arrays, strict=True)}
    parameters = signature_of(target).parameters
    by_name = all(name.split(".")[0] in parameters for name in tensors)
    return ((), nested(tensors)) if by_name else (tuple(tensors.values()), {})
