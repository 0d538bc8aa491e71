"""Make a model smaller and faster by passes, each verified, and rolled back where it fails or changes an answer."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import onnx_ir as ir

from torchport.errors import OptionError, ProofError, TorchportError, did_you_mean
from torchport.files.filesystem import check_target
from torchport.files.onnx_files import ModelLike, as_model, save
from torchport.irtools.traversal import all_nodes
from torchport.optimization.pass_process import PassProcess, Step
from torchport.optimization.pass_runs import CLAIM_SPEED, PassRuns
from torchport.optimization.passes.graph_pass import LIMIT_BYTES, Target
from torchport.optimization.result import Optimized
from torchport.optimization.speed_ratio import representative, speed_ratio
from torchport.results import Exported, Proof

_SECONDS = 600.0  # for all passes together, once for each pass that hangs


def optimize(
    model: ModelLike | Exported,
    *,
    output: str | os.PathLike[str] | None = None,
    target: Target = "onnxruntime",
    fix: Mapping[str, int] | None = None,
    inputs: Mapping[str, Any] | None = None,
    libraries: Sequence[str | os.PathLike[str]] = (),
    measure: bool = True,
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
    path = None if output is None else check_target(output)
    given = model.model if isinstance(model, Exported) else model
    with _as_file(given) as source:
        original = as_model(source)
        options = {"target": target, "limit_bytes": limit_bytes, "fix": dict(fix or {})}
        done = _Optimizing(source, original, options, inputs, libraries, progress).run(measure=measure)
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


@contextlib.contextmanager
def _as_file(model: ModelLike) -> Iterator[Path]:
    """The model as a file that another process can open."""
    if isinstance(model, (str, os.PathLike)):
        yield Path(model)
        return
    with tempfile.TemporaryDirectory(prefix="torchport-") as folder:
        yield save(as_model(model), Path(folder) / "given.onnx", check=False)


class _Optimizing:
    """One call of `optimize`."""

    def __init__(
        self,
        source: Path,
        original: ir.Model,
        options: Mapping[str, Any],
        inputs: Mapping[str, Any] | None,
        libraries: Sequence[str | os.PathLike[str]],
        say: Callable[[str], None],
    ) -> None:
        self._source, self._original, self._options = source, original, options
        self._inputs, self._libraries, self._say = inputs, libraries, say

    def run(self, *, measure: bool) -> Optimized:
        with PassProcess(self._source, self._original, self._options, seconds=_SECONDS) as self._process:
            import_module("torchport.verification.equivalence")  # while the other process imports what it needs
            self._runs = PassRuns(self._process, self._say)
            model, proof = self._proven()
            if measure and self._runs.before_fusions is not None and not self._is_faster(model):
                model, proof = self._proven()
        error = proof.summary()["max_abs"]
        return Optimized(
            model,
            self._options["target"],
            tuple(record.run(error) for record in self._runs.records.values()),
            tuple(self._runs.patterns()),
            proof,
            _count(self._original),
            _count(model),
            tuple(sorted(set(_domains(model)) - set(_domains(self._original)))),
            0.0,
        )

    def _proven(self) -> tuple[ir.Model, Proof]:
        """Return a model that gives the outputs of the original, and the proof; passes at fault are left out."""
        while True:
            self._runs.run()
            model, proof = self._verified()
            if proof.passed:
                return model, proof
            if not self._runs.steps:
                raise ProofError("the outputs differ although no pass changed the model", proof=proof)
            self._blame(proof)

    # --- speed ---

    def _is_faster(self, model: ir.Model) -> bool:
        """Measure what passes that claim speed gave; leave them out if that is less than nothing."""
        self._say("measuring")
        before = self._runs.before_fusions
        assert before is not None
        with tempfile.TemporaryDirectory(prefix="torchport-") as folder:
            paths = [
                save(each, Path(folder) / name, check=False)
                for name, each in (("before.onnx", before), ("after.onnx", model))
            ]
            feeds = representative(model, self._inputs, self._libraries)
            ratio = speed_ratio(paths[0], paths[1], feeds, self._libraries)
        slower = ratio is not None and ratio.differs and ratio.value > 1
        for module in CLAIM_SPEED:
            record = self._runs.records.get(module)
            if record is not None and record.changes and ratio is not None:
                record.ratio = ratio.value
                if slower:
                    self._runs.exclude(module, f"it was measured {ratio.value:.2f} times as slow", ratio=ratio.value)
        return not slower

    # --- verification ---

    def _verified(self) -> tuple[ir.Model, Proof]:
        """Return the model as it is in the process, and the proof that it gives the outputs of the original."""
        from torchport.verification.equivalence import prove_same

        self._say("verifying")
        model = self._process.model()
        return model, prove_same(self._original, model, inputs=self._inputs, libraries=self._libraries)

    def _blame(self, proof: Proof) -> None:
        """Find the step that makes the outputs differ, and the change in it; exclude its pass."""
        steps = self._runs.steps
        first = _first(len(steps), lambda count: not self._holds(steps[:count]))
        step = steps[first - 1]
        before = steps[: first - 1]
        self._process.go_to(before)
        changes = self._process.apply(step)["changes"]
        count = _first(changes, lambda most: not self._holds([*before, Step(step.module, most)]))
        self._process.go_to(before)
        node = self._process.apply(Step(step.module, count))["last"]
        self._runs.exclude(step.module, f"it changes the outputs: {_difference(proof)}", node)

    def _holds(self, steps: Sequence[Step]) -> bool:
        self._process.go_to(steps)
        try:
            return self._verified()[1].passed
        except TorchportError:
            return False


def _first(count: int, fails: Callable[[int], bool]) -> int:
    """Return the smallest number from 1 to `count` at which something fails, known to fail at the last."""
    low, high = 1, max(count, 1)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fails(middle) else (middle + 1, high)
    return low


def _difference(proof: Proof) -> str:
    failed = proof.failures[0] if proof.failures else None
    return "no case could be compared" if failed is None else f"case '{failed.label}', {failed.note}"


def _count(model: ir.Model) -> int:
    return sum(1 for _ in all_nodes(model))


def _domains(model: ir.Model) -> list[str]:
    return [node.domain for node in all_nodes(model) if node.domain not in ("", "ai.onnx")]
