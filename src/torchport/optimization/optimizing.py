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

from torchport.errors import OptionError, ProofError, did_you_mean
from torchport.files.filesystem import check_target
from torchport.files.onnx_files import ModelLike, as_model, save
from torchport.irtools.traversal import all_nodes
from torchport.optimization.pass_process import PassError, PassProcess, Step
from torchport.optimization.passes.graph_pass import LIMIT_BYTES, Pattern, Target
from torchport.optimization.result import Optimized, PassRun, PassVerdict
from torchport.results import Exported, Finding, Proof

_PASSES = "torchport.optimization.passes"
CLEANUP = tuple(
    f"{_PASSES}.{name}"
    for name in (
        "constant_folding",
        "redundant_operators",
        "redundant_reshapes",
        "slices_and_concats",
        "transposes",
        "shape_arithmetic",
        "dead_code",
        "common_subexpressions",
        "conv_fusion",
        "gemm_fusion",
        "dead_code",
    )
)
LAST = (f"{_PASSES}.duplicate_weights", f"{_PASSES}.dead_code")
_ROUNDS = 4
_SECONDS = 600.0  # for all passes together, once for each pass that hangs


def optimize(
    model: ModelLike | Exported,
    *,
    out: str | os.PathLike[str] | None = None,
    target: Target = "onnxruntime",
    fix: Mapping[str, int] | None = None,
    inputs: Mapping[str, Any] | None = None,
    libraries: Sequence[str | os.PathLike[str]] = (),
    limit_bytes: int = LIMIT_BYTES,
    progress: Callable[[str], None] = lambda text: None,
) -> Optimized:
    """Optimize a model, and prove that it gives the outputs it gave.

    Passes run in a process of their own. One that raises, hangs, ends its process or changes an answer is rolled back
    and named with the node it failed at; the others go on.

    Args:
        model: a file, an `ir.Model`, an `onnx.ModelProto` or the result of `tp.export`; it is not changed.
        out: where to save the result.
        target: the engine it is for. "portable" keeps to ONNX's own operators.
        fix: sizes for dynamic dimensions, ``{"batch": 1}``.
        inputs: arrays to verify with; made up from the shapes where none are given.
        libraries: operator libraries that the model needs, by path.
        limit_bytes: constants larger than this are not computed beforehand.
        progress: called with one line at each step.

    Returns:
        The model, what each pass did, the patterns that were found, and the proof.

    Raises:
        ProofError: the outputs differ even without any pass.
        RandomModelError: the model gives other outputs each time, so that nothing can be verified.

    Example:
        >>> done = tp.optimize("model.onnx", out="fast.onnx")
        >>> print(done)
    """
    started = time.monotonic()
    _check_options(target, fix)
    path = None if out is None else check_target(out)
    given = model.model if isinstance(model, Exported) else model
    with _as_file(given) as source:
        original = as_model(source)
        done = _Optimizing(source, original, target, dict(fix or {}), limit_bytes, inputs, libraries, progress).run()
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


@dataclasses.dataclass
class _Record:
    """What a pass has done so far."""

    name: str
    requires: str = ""
    before: int = 0
    removed: int = 0
    changes: int = 0
    seconds: float = 0.0
    verdict: PassVerdict | None = None
    reason: str = ""
    node: str = ""

    def run(self, error: float | None) -> PassRun:
        verdict: PassVerdict = self.verdict or ("kept" if self.changes else "nothing to do")
        reason = self.reason or ("" if self.changes else f"there is no place with {self.requires}")
        removed = self.removed if verdict == "kept" else 0
        shown = error if verdict == "kept" else None
        return PassRun(
            *(self.name, verdict, self.before, self.before - removed, self.changes, self.seconds),
            *(reason, self.node, shown),
        )


class _Optimizing:
    """One call of `optimize`."""

    def __init__(
        self,
        source: Path,
        original: ir.Model,
        target: Target,
        fix: dict[str, int],
        limit_bytes: int,
        inputs: Mapping[str, Any] | None,
        libraries: Sequence[str | os.PathLike[str]],
        say: Callable[[str], None],
    ) -> None:
        self._source, self._original, self._target = source, original, target
        self._options = {"target": target, "limit_bytes": limit_bytes, "fix": fix}
        self._inputs, self._libraries, self._say = inputs, libraries, say
        self._records: dict[str, _Record] = {}
        self._excluded: set[str] = set()
        self._patterns: dict[str, list[Pattern]] = {}

    def run(self) -> Optimized:
        with PassProcess(self._source, self._original, self._options, seconds=_SECONDS) as self._process:
            import_module("torchport.verification.equivalence")  # while the other process imports what it needs
            before = sum(1 for _ in all_nodes(self._original))
            steps = self._apply_all()
            model, proof = self._verified(steps)
            while not proof.passed and steps:
                self._blame(steps, proof)
                steps = self._apply_all()
                model, proof = self._verified(steps)
        if not proof.passed:
            raise ProofError("the outputs differ although no pass changed the model", proof=proof)
        error = proof.summary()["max_abs"]
        return Optimized(
            model,
            self._target,
            tuple(record.run(error) for record in self._records.values()),
            tuple(p for found in self._patterns.values() for p in found),
            proof,
            before,
            sum(1 for _ in all_nodes(model)),
            tuple(sorted(set(_domains(model)) - set(_domains(self._original)))),
            0.0,
            findings=self._findings(),
        )

    def _findings(self) -> tuple[Finding, ...]:
        return ()

    # --- passes ---

    def _apply_all(self) -> list[Step]:
        """Apply all passes that are not excluded, until none changes anything; return the steps that did."""
        self._process.go_to([])
        steps: list[Step] = []
        for record in self._records.values():
            if record.verdict is None:
                record.removed = record.changes = 0
        self._patterns.clear()
        for _ in range(_ROUNDS):
            if not sum(self._apply(module, steps) for module in CLEANUP):
                break
        for module in LAST:
            self._apply(module, steps)
        return steps

    def _apply(self, module: str, steps: list[Step]) -> bool:
        """Apply one pass; whether it changed something."""
        if module in self._excluded:
            return False
        name = module.rpartition(".")[2].replace("_", " ")
        self._say(name)
        start = time.monotonic()
        try:
            done = self._process.apply(Step(module))
        except PassError as error:
            record = self._records.setdefault(module, _Record(name))
            record.seconds += time.monotonic() - start
            self._exclude(module, f"it failed: {error.reason}", error.node)
            return False
        if not done["applies"]:
            return False
        record = self._records.setdefault(module, _Record(done["name"], done["requires"], done["before"]))
        record.removed += done["before"] - done["after"]
        record.changes += done["changes"]
        record.seconds += done["seconds"]
        self._patterns.setdefault(module, []).extend(Pattern(**p) for p in done["patterns"])
        if done["changes"] or done["before"] != done["after"]:
            steps.append(Step(module))
        return bool(done["changes"])

    def _exclude(self, module: str, reason: str, node: str) -> None:
        record = self._records[module]
        record.verdict, record.reason, record.node = "rolled back", reason, node
        self._excluded.add(module)
        self._patterns.pop(module, None)

    # --- verification ---

    def _verified(self, steps: Sequence[Step]) -> tuple[ir.Model, Proof]:
        """Return the model as it is in the process, and the proof that it gives the outputs of the original."""
        from torchport.verification.equivalence import prove_same

        self._say("verifying")
        model = self._process.model()
        return model, prove_same(self._original, model, inputs=self._inputs, libraries=self._libraries)

    def _blame(self, steps: list[Step], proof: Proof) -> None:
        """Find the step that makes the outputs differ, and the change in it; exclude its pass."""
        first = _first(len(steps), lambda count: not self._holds(steps[:count]))
        step = steps[first - 1]
        before = steps[: first - 1]
        self._process.go_to(before)
        changes = self._process.apply(step)["changes"]
        count = _first(changes, lambda most: not self._holds([*before, Step(step.module, most)]))
        self._process.go_to(before)
        node = self._process.apply(Step(step.module, count))["last"]
        self._exclude(step.module, f"it changes the outputs: {_difference(proof)}", node)

    def _holds(self, steps: Sequence[Step]) -> bool:
        from torchport.errors import TorchportError

        self._process.go_to(steps)
        try:
            return self._verified(steps)[1].passed
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


def _domains(model: ir.Model) -> list[str]:
    return [node.domain for node in all_nodes(model) if node.domain not in ("", "ai.onnx")]
