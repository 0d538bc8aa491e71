"""Make a model smaller and faster by passes, each verified, and rolled back where it fails or changes an answer."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from torchport.errors import OptionError, did_you_mean
from torchport.files.filesystem import check_target
from torchport.optimization import pass_runs
from torchport.optimization.pass_process import PassProcess
from torchport.optimization.result import ONNXRUNTIME, Optimized, Target
from torchport.results import Exported

if TYPE_CHECKING:
    from torchport.files.onnx_files import ModelLike

LIMIT_BYTES = 16 * 2**20  # of a constant that is computed beforehand
_SECONDS = 180.0  # for all passes together, once more for each pass that hangs


def optimize(
    model: ModelLike | Exported,
    *,
    output: str | os.PathLike[str] | None = None,
    target: Target = ONNXRUNTIME,
    fix: Mapping[str, int] | None = None,
    inputs: Mapping[str, Any] | None = None,
    libraries: Sequence[str | os.PathLike[str]] = (),
    measure: bool = True,
    simplifiers: Sequence[str] = (),
    limit_bytes: int = LIMIT_BYTES,
    progress: Callable[[str], None] = lambda text: None,
) -> Optimized:
    """Optimize a model, and prove that it gives the outputs it gave.

    Passes run in a process of their own. One that raises, hangs, ends its process or changes an answer is rolled back
    and named with the node it failed at; the others go on.

    Args:
        model: a file, an `ir.Model`, an `onnx.ModelProto` or the result of `tp.export`; it is not changed.
        output: where to save the result.
        target: the engine it is for. "portable" keeps to ONNX's own operators.
        fix: sizes for dynamic dimensions, ``{"batch": 1}``.
        inputs: arrays to verify with; made up from the shapes where none are given.
        libraries: operator libraries that the model needs, by path.
        measure: measure the passes that claim speed, and leave those out that make the model slower.
        simplifiers: "onnxslim", "onnxsim" or both: tried as passes, under the same rules (``pip install
            "torchport[simplify]"``).
        limit_bytes: constants larger than this are not computed beforehand.
        progress: called with one line at each step.

    Returns:
        The model, what each pass did, the patterns that were found, and the proof.

    Raises:
        ProofError: the outputs differ even without any pass.
        RandomModelError: the model gives other outputs each time, so that nothing can be verified.

    Example:
        >>> done = tp.optimize("model.onnx", output="fast.onnx")
        >>> print(done)
    """
    started = time.monotonic()
    _check_options(target, fix)
    _check_simplifiers(simplifiers)
    path = None if output is None else check_target(output)
    given = model.model if isinstance(model, Exported) else model
    with _as_file(given) as source:
        options = {"target": target, "limit_bytes": limit_bytes, "fix": dict(fix or {})}
        modules = dict.fromkeys((*pass_runs.CLEANUP, *pass_runs.FUSIONS, *pass_runs.LAST))
        with PassProcess(source, options, seconds=_SECONDS, modules=list(modules)) as process:
            # imported while the other process imports what it needs
            from torchport.files.onnx_files import as_model, save
            from torchport.optimization.proven_passes import ProvenPasses

            passes = ProvenPasses(process, as_model(source), target, simplifiers, inputs, libraries, progress)
            done = passes.run(measure=measure)
        if path is not None:
            progress("saving")
            save(done.model, path)
    return dataclasses.replace(done, path=None if path is None else str(path), seconds=time.monotonic() - started)


def _check_options(target: str, fix: Mapping[str, int] | None) -> None:
    targets = get_args(Target)
    if target not in targets:
        hint = did_you_mean(str(target), targets, f"one of {', '.join(targets)}", most=1)
        raise OptionError(f"there is no target '{target}'", where=f"--for {target}", next_step=hint)
    for name, size in (fix or {}).items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise OptionError(
                f"dimension '{name}' cannot have the size {size!r}", where=f"--fix {name}={size}", next_step="1 or more"
            )


def _check_simplifiers(names: Sequence[str]) -> None:
    for name in names:
        if name not in pass_runs.SIMPLIFIERS:
            hint = did_you_mean(name, pass_runs.SIMPLIFIERS, "onnxslim or onnxsim", most=1)
            raise OptionError(f"there is no simplifier '{name}'", where=f"--try {name}", next_step=hint)
        if find_spec(name) is None:
            raise OptionError(
                f"{name} is not installed", where=f"--try {name}", next_step='pip install "torchport[simplify]"'
            )


@contextlib.contextmanager
def _as_file(model: ModelLike) -> Iterator[Path]:
    """The model as a file that another process can open."""
    if isinstance(model, (str, os.PathLike)):
        yield Path(model)
        return
    from torchport.files.onnx_files import as_model, save

    with tempfile.TemporaryDirectory(prefix="torchport-") as folder:
        yield save(as_model(model), Path(folder) / "given.onnx", check=False)
