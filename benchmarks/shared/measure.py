"""One model, one exporter, in this process: export, check at unseen shapes, print what happened as JSON.

The check is the benchmark's own: onnxruntime on inputs of other sizes beside PyTorch, nothing of torchport's proof.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import re
import resource
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from spec import Cache, Input, Several, Spec


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """How far a number may be off: `relative` of itself and `absolute` of the largest number of the output."""

    absolute: float
    relative: float = 1e-3


def measure(exporter: str, find: Callable[[str], Spec], name: str, *, limit: int, tolerance: Tolerance) -> None:
    """Export and check one model, and print the result. A signal ends the process when the export takes too long."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder, _stdout_to_stderr():
        spec = find(name)
        model = spec.model()
        target = Path(folder) / "model.onnx"
        signal.alarm(limit)
        started = time.perf_counter()
        result = _export(exporter, spec, model, target)
        result["seconds"] = round(time.perf_counter() - started, 1)
        signal.alarm(0)
        result["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        if result["outcome"] == "exported":
            # built anew: the exported one may keep what the capture left on it
            with torch.no_grad():
                result |= _check(spec, spec.model(), target, tolerance)
    print(json.dumps(result))


@contextlib.contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """The exporters talk; the last line of stdout is ours."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def _export(exporter: str, spec: Spec, model: torch.nn.Module, target: Path) -> dict[str, Any]:
    arguments = {**spec.arguments(spec.example, 0), **spec.fixed}
    try:
        return (_torchport if exporter == "torchport" else _torch)(spec, model, arguments, target)
    except Exception as error:
        refused = any(c.__name__ == "TorchportError" for c in type(error).__mro__)
        if os.environ.get("ZOO_DEBUG"):
            raise
        print(type(error).__name__, error, *getattr(error, "attempts", ()), sep="\n", file=sys.stderr)
        return {"outcome": "refused" if refused else "failed", "reason": _reason(error)}


def _torchport(spec: Spec, model: torch.nn.Module, arguments: dict[str, Any], target: Path) -> dict[str, Any]:
    import torchport

    names = {d for one in spec.tensors.values() for d in one.dynamic.values()}
    dims = {d: torch.export.Dim(d, max=spec.limits.get(d)) for d in names}
    dims |= {d: step * dims[d] for d, step in spec.steps.items()}
    axes = {n: {a: dims[d] for a, d in one.dynamic.items()} for n, one in spec.tensors.items() if one.dynamic}
    says = (lambda text: print(text, file=sys.stderr)) if os.environ.get("ZOO_DEBUG") else None
    exported = torchport.export(model, kwargs=arguments, output=target, dynamic=axes, progress=says)
    last = exported.attempts[-1]
    return {"outcome": "exported", "route": exported.route, "repairs": list(last.repairs)}


def _axes(one: Input) -> dict[int, Any]:
    # AUTO, as the named ones raise on any relation between two dimensions
    return dict.fromkeys(one.dynamic, torch.export.Dim.AUTO)


class Bound(torch.nn.Module):
    """The model with its fixed arguments: torch wants the shapes of `**kwargs` in a form of their own, which would fail
    models for how they are called."""

    def __init__(self, model: torch.nn.Module, spec: Spec) -> None:
        super().__init__()
        self.model = model
        self.names = list(spec.inputs)
        self.fixed = dict(spec.fixed)

    def forward(self, *given: Any) -> Any:
        return self.model(**dict(zip(self.names, given, strict=True)), **self.fixed)


def _torch(spec: Spec, model: torch.nn.Module, arguments: dict[str, Any], target: Path) -> dict[str, Any]:
    shapes: list[Any] = []
    for name, given in spec.inputs.items():
        if isinstance(given, Cache):
            from transformers.exporters.exporter_dynamo import register_pytree_node

            register_pytree_node(type(arguments[name]))
        if isinstance(given, Input):
            shapes.append(_axes(given))
        elif isinstance(given, Several) and given.as_dict:
            shapes.append({part: _axes(one) for part, one in given.tensors.items()})
        else:
            shapes.append([_axes(one) for one in given.tensors.values()])
    bound, given_ones = Bound(model, spec).eval(), tuple(arguments[name] for name in spec.inputs)
    torch.onnx.export(bound, given_ones, target, dynamo=True, dynamic_shapes=(tuple(shapes),), verbose=False)
    return {"outcome": "exported"}


def _reason(error: BaseException) -> str:
    """The first line of the error at the root, and where torchport says it happened."""
    where = str(getattr(error, "where", None) or "")
    while error.__cause__ is not None and not where:
        error = error.__cause__
    lines = [line.strip() for line in (where or str(error)).splitlines() if line.strip()]
    text = " / ".join(lines[:4] if where else lines[:1]) or type(error).__name__
    return re.sub(r"[^\s(]*/(site-packages|benchmarks|src)/", "", text)[:600]


def _check(spec: Spec, model: torch.nn.Module, target: Path, tolerance: Tolerance) -> dict[str, Any]:
    try:
        session = onnxruntime.InferenceSession(str(target), providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001 - onnxruntime's errors have no common class
        return {"outcome": "engine fails", "reason": f"loading: {_reason(error)[:300]}"}
    for seed, sizes in enumerate((spec.example, *spec.unseen), start=1):
        for padded in (False, True) if any(one.ones for one in spec.tensors.values()) else (False,):
            answer = model(**spec.arguments(sizes, seed, padded=padded), **spec.fixed)
            # made again, as the model writes to a cache
            given = spec.arguments(sizes, seed, padded=padded)
            shown = " ".join(f"{k}={v}" for k, v in sizes.items()) + (" padded" if padded else "")
            try:
                problem = _differs(session, given, answer, tolerance)
            except EngineFailsError as error:
                return {"outcome": "engine fails", "reason": f"{shown}: {error}"}
            if problem:
                return {"outcome": "wrong", "reason": f"{shown}: {problem}"}
    return {"outcome": "right", "nodes": len(_graph_size(target))}


class EngineFailsError(Exception):
    """onnxruntime raised where PyTorch answered."""


def _graph_size(target: Path) -> Any:
    import onnx

    return onnx.load(target, load_external_data=False).graph.node


def _differs(
    session: onnxruntime.InferenceSession, arguments: dict[str, Any], answer: Any, tolerance: Tolerance
) -> str:
    tensors = list(leaves(arguments))
    inputs = session.get_inputs()
    if len(inputs) != len(tensors):
        return f"the ONNX model has {len(inputs)} inputs, the PyTorch model {len(tensors)}"
    by_name = all(i.name in arguments for i in inputs)
    given = [arguments[i.name] for i in inputs] if by_name else tensors
    feeds = {i.name: tensor.detach().numpy() for i, tensor in zip(inputs, given, strict=True)}
    wanted = [tensor.detach().numpy() for tensor in leaves(answer)]
    try:
        got = session.run(None, feeds)
    except Exception as error:
        raise EngineFailsError(str(error).splitlines()[0][:300]) from error
    if len(got) != len(wanted):
        return f"{len(got)} outputs instead of {len(wanted)}"
    problems = (_compare(a, b, tolerance) for a, b in zip(got, wanted, strict=True))
    return next((f"output {i}: {p}" for i, p in enumerate(problems) if p), "")


def _compare(got: Any, want: Any, tolerance: Tolerance) -> str:
    if got.shape != want.shape:
        return f"shape {got.shape} instead of {want.shape}"
    if want.dtype.kind not in "fc":
        return "" if np.array_equal(got, want) else "integers differ"
    if not np.array_equal(np.isfinite(got), np.isfinite(want)):
        return "infinities or NaN in other places"
    both = np.where(np.isfinite(want), want, 0).astype(np.float64)
    error = np.abs(np.where(np.isfinite(got), got, 0) - both)
    largest = np.abs(both).max(initial=0.0)
    over = error > tolerance.relative * np.abs(both) + tolerance.absolute * largest + 1e-6
    return f"off by {error.max():.1e} where the largest number is {largest:.1e}" if over.any() else ""


def leaves(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of nested arguments and answers, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for child in value.values():
            yield from leaves(child)
    elif isinstance(value, (list, tuple)):
        for child in value:
            yield from leaves(child)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from leaves(getattr(value, field.name))
    elif hasattr(value, "layers"):  # a cache
        for layer in value.layers:
            yield from (layer.keys, layer.values)
