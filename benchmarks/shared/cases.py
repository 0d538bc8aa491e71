"""Small exports, many in one process: a case of a database, and the check of what an exporter made of it."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import dataclasses
import json
import logging
import math
import os
import re
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from torch.utils import _pytree as pytree

_ENGINE = "onnxruntime"
RELATIVE, ABSOLUTE = 1e-3, 1e-5  # the second of the largest number of the output


@dataclasses.dataclass(frozen=True)
class Call:
    """The arguments of one call of a model. A model may write to them, so that each use takes a copy."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)

    def copied(self) -> Call:
        return pytree.tree_map_only(torch.Tensor, lambda t: t.detach().clone(), copy.copy(self))

    def leaves(self) -> list[Any]:
        return pytree.tree_leaves((self.args, self.kwargs))

    def tensors(self) -> list[torch.Tensor]:
        return [leaf for leaf in self.leaves() if isinstance(leaf, torch.Tensor)]


pytree.register_pytree_node(Call, lambda c: ([c.args, c.kwargs], None), lambda children, _: Call(*children))


@dataclasses.dataclass(frozen=True)
class Case:
    """One model to export.

    Attributes:
        example: what it is exported with.
        dynamic: its dynamic axes, as both exporters take them.
        unseen: further calls to check.
    """

    model: torch.nn.Module
    example: Call
    dynamic: Any = None
    unseen: tuple[Call, ...] = ()

    def answer(self, call: Call) -> list[torch.Tensor]:
        """PyTorch's answer from the state the model was built in: some models count their calls."""
        given = call.copied()
        with torch.no_grad():
            leaves = pytree.tree_leaves(copy.deepcopy(self.model)(*given.args, **given.kwargs))
        return [torch.as_tensor(leaf) for leaf in leaves if leaf is not None]


Find = Callable[[str], Iterable[Case]]


def work(exporter: str, find: Find, names: list[str], *, limit: int) -> None:
    """Print a line of JSON before and after each name. A signal ends the process when a case takes too long."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    out = sys.stdout
    for name in names:
        print(json.dumps({"begun": name}), file=out, flush=True)
        started = time.perf_counter()
        with contextlib.redirect_stdout(sys.stderr):
            result = _worst(exporter, find(name), limit)
        result |= {"model": name, "exporter": exporter, "seconds": round(time.perf_counter() - started, 1)}
        print(json.dumps(result), file=out, flush=True)


def _worst(exporter: str, cases: Iterable[Case], limit: int) -> dict[str, Any]:
    """The worst of the cases: wrong before refused before right."""
    worst: dict[str, Any] = {"outcome": "right"}
    for number, case in enumerate(cases):
        signal.alarm(limit)
        outcome, reason = _case(exporter, case)
        signal.alarm(0)
        reason = f"sample {number}: {reason}" if number else reason
        if outcome == "wrong":
            return {"outcome": "wrong", "reason": reason}
        if outcome != "right" and worst["outcome"] == "right":
            worst = {"outcome": outcome, "reason": reason}
    return worst


def _case(exporter: str, case: Case) -> tuple[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "model.onnx"
        calls = [case.example, *case.unseen]
        try:
            wanted = [case.answer(call) for call in calls]
            (_torchport if exporter == "torchport" else _torch)(case, target)
        except Exception as error:
            if os.environ.get("CASES_DEBUG"):
                raise
            refused = any(c.__name__ == "TorchportError" for c in type(error).__mro__)
            return "refused" if refused else "failed", _reason(error)
        return _differ(target, list(zip(calls, wanted, strict=True)))


def _torchport(case: Case, target: Path) -> None:
    import torchport

    call = case.example.copied()
    torchport.export(
        copy.deepcopy(case.model).eval(),
        call.args,
        kwargs=call.kwargs or None,
        output=target,
        dynamic=case.dynamic,
        keep_unused_inputs=True,
    )


def _torch(case: Case, target: Path) -> None:
    call = case.example.copied()
    model = copy.deepcopy(case.model).eval()
    shapes = {"dynamic_shapes": case.dynamic} if case.dynamic else {}
    torch.onnx.export(model, call.args, target, kwargs=call.kwargs, dynamo=True, verbose=False, **shapes)


def _reason(error: BaseException) -> str:
    text = f"{error} / {error.where}" if getattr(error, "where", None) else str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    text = f"{type(error).__name__}: {' / '.join(lines[:6])}"
    return re.sub(r"[^\s(]*/(site-packages|benchmarks|src)/", "", text)[:600]


def _differ(target: Path, answered: list[tuple[Call, list[torch.Tensor]]]) -> tuple[str, str]:
    try:
        session = onnxruntime.InferenceSession(str(target), providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001 - onnxruntime's errors have no common class
        return "engine fails", f"loading: {str(error).splitlines()[0][:200]}"
    for call, wanted in answered:
        problem = _differs(session, call, wanted)
        if problem:
            outcome = "engine fails" if problem.startswith(_ENGINE) else "wrong"
            return outcome, f"{[list(t.shape) for t in call.tensors()]}: {problem}"
    return "right", ""


def _differs(session: onnxruntime.InferenceSession, call: Call, wanted: list[torch.Tensor]) -> str:
    tensors = [t.detach().resolve_conj().resolve_neg().numpy() for t in call.tensors()]
    inputs = session.get_inputs()
    if len(inputs) != len(tensors):
        return f"{len(inputs)} inputs instead of {len(tensors)}"
    try:
        got = _run(session, {i.name: t for i, t in zip(inputs, tensors, strict=True)})
    except Exception as error:  # noqa: BLE001 - onnxruntime's errors have no common class
        return f"{_ENGINE}: {str(error).splitlines()[0][:200]}"
    if len(got) != len(wanted):
        return f"{len(got)} outputs instead of {len(wanted)}"
    problems = (_compare(a, _plain(b)) for a, b in zip(got, wanted, strict=True))
    return next((f"output {n}: {p}" for n, p in enumerate(problems) if p), "")


def _run(session: onnxruntime.InferenceSession, feeds: dict[str, Any]) -> list[Any]:
    """The outputs as NumPy has them; bfloat16, which it has not, as float32."""
    if all(output.type != "tensor(bfloat16)" for output in session.get_outputs()):
        return list(session.run(None, feeds))
    values = session.run_with_ort_values(
        [output.name for output in session.get_outputs()],
        {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in feeds.items()},
    )
    return [_widened(v) if v.element_type() == onnx.TensorProto.BFLOAT16 else v.numpy() for v in values]


def _widened(value: Any) -> Any:
    """bfloat16 is the first half of float32."""
    bits = (ctypes.c_uint16 * math.prod(value.shape())).from_address(value.data_ptr())
    return (np.array(bits, dtype=np.uint32) << 16).view(np.float32).reshape(value.shape())


def _plain(tensor: torch.Tensor) -> Any:
    """As NumPy has it; complex numbers as pairs, as ONNX models give them."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()


def _compare(got: Any, want: Any) -> str:
    if got.dtype.kind == "c":
        got = np.stack([got.real, got.imag], -1)
    if got.shape != want.shape:
        return f"shape {got.shape} instead of {want.shape}"
    if want.dtype.kind not in "f":
        return "" if np.array_equal(got, want) else "whole numbers differ"
    got, want = got.astype(np.float64), want.astype(np.float64)
    if not np.array_equal(np.isnan(got), np.isnan(want)) or not np.array_equal(np.isinf(got), np.isinf(want)):
        return "infinities or NaN in other places"
    finite = np.isfinite(want)
    error, largest = np.abs(got - want)[finite], np.abs(want[finite]).max(initial=0.0)
    over = error > RELATIVE * np.abs(want[finite]) + ABSOLUTE * largest + 1e-7
    return f"off by {error.max():.1e} where the largest number is {largest:.1e}" if over.any() else ""
