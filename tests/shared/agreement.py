"""Export a model, open the file as a user does, and hold it against PyTorch at other sizes and values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

import torchport as tp
from torchport.capture import models
from torchport.capture.structure import output_tensors

LIMITS = {  # the proof's own: of each number, and of the largest in the output
    torch.float32: (1e-3, 1e-5),
    torch.float16: (1e-2, 1e-3),
    torch.bfloat16: (2e-2, 1e-2),
    torch.float64: (1e-7, 1e-9),
}


def check(
    folder: Path,
    model: Any,
    args: tuple[Any, ...],
    others: Iterable[tuple[Any, ...]],
    *,
    precision: torch.dtype | None = None,
    **options: Any,
) -> tuple[tp.Exported, Counter[str]]:
    """The export and its nodes' operators, after both models agreed on `others`."""
    exported = tp.export(model, args, output=folder / "model.onnx", **options)
    session = tp.session(folder / "model.onnx")
    subject = models.subject(model)
    target = model if callable(model) else subject.target
    for other in others:
        call = models.call(subject, other)
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            want = [t.clone() for t in output_tensors(target(*copied(other)))[1]]
        got = session(*call.tensors)
        got = [got] if isinstance(got, torch.Tensor) else list(got.values() if isinstance(got, dict) else got)
        assert len(got) == len(want)
        for ours, theirs in zip(got, want, strict=True):
            assert_close(ours, theirs, precision or theirs.dtype)
    return exported, Counter(n.op_type for n in exported.model.graph.all_nodes())


def copied(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """A model may write to what it is given."""
    return tuple(tree_map_only(torch.Tensor, torch.clone, list(args)))


def assert_close(ours: torch.Tensor, theirs: torch.Tensor, precision: torch.dtype) -> None:
    rtol, atol = LIMITS.get(precision, (0.0, 0.0))
    largest = float(theirs.double().abs().max()) if theirs.numel() else 0.0
    torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol * max(largest, 1e-3))
