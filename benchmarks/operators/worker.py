"""Some entries of the database, one exporter, in this process: export, run in ONNX Runtime, print what happened.

python worker.py torchport cdist cumprod    a line of JSON before and after each entry
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import math
import os
import signal
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from database import Sample, samples

LIMIT = 60  # seconds for one sample; a signal ends the process then
RELATIVE, ABSOLUTE = 1e-3, 1e-5  # the second of the largest number of the output


def main(exporter: str, names: list[str]) -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    out = sys.stdout
    for name in names:
        print(json.dumps({"begun": name}), file=out, flush=True)
        started = time.perf_counter()
        with contextlib.redirect_stdout(sys.stderr):
            result = _entry(exporter, name)
        result |= {"entry": name, "exporter": exporter, "seconds": round(time.perf_counter() - started, 1)}
        print(json.dumps(result), file=out, flush=True)


def _entry(exporter: str, name: str) -> dict[str, Any]:
    """The worst of the samples: wrong before refused before right."""
    worst: dict[str, Any] = {"outcome": "right"}
    for number, sample in enumerate(samples(name)):
        signal.alarm(LIMIT)
        outcome, reason = _sample(exporter, sample)
        signal.alarm(0)
        if outcome == "wrong":
            return {"outcome": "wrong", "reason": f"sample {number}: {reason}"}
        if outcome != "right" and worst["outcome"] == "right":
            worst = {"outcome": outcome, "reason": f"sample {number}: {reason}"}
    return worst


def _sample(exporter: str, sample: Sample) -> tuple[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "model.onnx"
        try:
            wanted = sample.answer()
            (_torchport if exporter == "torchport" else _torch)(sample, target)
        except Exception as error:
            if os.environ.get("OPERATORS_DEBUG"):
                raise
            refused = any(c.__name__ == "RefusedError" for c in type(error).__mro__)
            return "refused" if refused else "failed", _reason(error)
        problem = _differs(target, sample, wanted)
    return ("wrong", problem) if problem else ("right", "")


def _torchport(sample: Sample, target: Path) -> None:
    import torchport

    torchport.export(sample.eval(), sample.inputs, output=target, keep_unused_inputs=True)


def _torch(sample: Sample, target: Path) -> None:
    torch.onnx.export(sample.eval(), sample.inputs, target, dynamo=True, verbose=False)


def _reason(error: BaseException) -> str:
    text = str(getattr(error, "where", None) or error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]


def _differs(target: Path, sample: Sample, wanted: list[torch.Tensor]) -> str:
    try:
        session = onnxruntime.InferenceSession(str(target), providers=["CPUExecutionProvider"])
        inputs = session.get_inputs()
        tensors = [t.resolve_conj().resolve_neg().numpy() for t in sample.inputs]
        if len(inputs) != len(tensors):
            return f"{len(inputs)} inputs instead of {len(tensors)}"
        got = _run(session, {i.name: t for i, t in zip(inputs, tensors, strict=True)})
    except Exception as error:  # noqa: BLE001 - onnxruntime's errors have no common class
        return f"onnxruntime: {str(error).splitlines()[0][:200]}"
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


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
