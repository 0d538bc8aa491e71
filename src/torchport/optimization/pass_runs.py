"""Which passes there are and in which order they run, and the record of what each did."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from torchport.optimization.pass_process import PassError, PassProcess, Step
from torchport.optimization.result import PassRun, PassVerdict, Pattern

if TYPE_CHECKING:
    import onnx_ir as ir


def _modules(*names: str) -> tuple[str, ...]:
    return tuple(f"torchport.optimization.passes.{name}" for name in names)


CLEANUP = _modules(
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
FUSIONS = _modules("newer_opset", "activations", "normalizations", "rotary", "attention", "other_patterns")
CLAIM_SPEED = _modules("newer_opset", "rotary", "attention")  # kept if they are measured not to be slower
SIMPLIFIERS = dict(zip(("onnxslim", "onnxsim"), _modules("onnxslim", "onnxsim"), strict=True))
LAST = _modules("duplicate_weights", "dead_code")
_ROUNDS = 4


@dataclasses.dataclass
class Record:
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
    ratio: float | None = None
    fused: list[Pattern] = dataclasses.field(default_factory=list)
    left: list[Pattern] = dataclasses.field(default_factory=list)

    def forget(self) -> None:
        """Forget what it changed: the passes run again from the start. The time counts."""
        self.removed = self.changes = 0
        self.fused, self.left = [], []

    def add(self, done: dict[str, Any]) -> None:
        """Take what the pass did in one more round."""
        self.removed += done["before"] - done["after"]
        self.changes += done["changes"]
        self.seconds += done["seconds"]
        patterns = [Pattern(**given) for given in done["patterns"]]
        self.fused += [pattern for pattern in patterns if pattern.fused_into]
        self.left = [pattern for pattern in patterns if not pattern.fused_into]

    def run(self, error: float | None) -> PassRun:
        """Return the record for the user."""
        verdict: PassVerdict = self.verdict or ("kept" if self.changes else "nothing to do")
        reason = self.reason or ("" if self.changes else f"there is no place with {self.requires}")
        kept = verdict == "kept"
        return PassRun(
            name=self.name,
            verdict=verdict,
            nodes_before=self.before,
            nodes_after=self.before - (self.removed if kept else 0),
            changes=self.changes,
            seconds=self.seconds,
            reason=reason,
            node=self.node,
            error=error if kept else None,
            ratio=self.ratio,
        )


class PassRuns:
    """Runs passes in order, until none changes anything.

    Args:
        process: has the model.
        original: the model in this process.
        simplifiers: other programs to try.
        say: called with one line at each step.

    Attributes:
        records: by module, in the order in which passes first ran.
        steps: those that changed the model.
        before_fusions: the model before passes that claim speed changed it; None if they did not.
    """

    def __init__(
        self, process: PassProcess, original: ir.Model, simplifiers: Sequence[str], say: Callable[[str], None]
    ) -> None:
        self._process, self._original, self._say = process, original, say
        self._simplifiers = [SIMPLIFIERS[name] for name in simplifiers]
        self.records: dict[str, Record] = {}
        self.steps: list[Step] = []
        self.before_fusions: ir.Model | None = None
        self._excluded: set[str] = set()

    def run(self) -> None:
        """Apply all passes that are not excluded, to the model as it was opened."""
        if self.steps:
            self._process.go_to([])
        self.steps, self.before_fusions = [], None
        for record in self.records.values():
            record.forget()
        self._until_stable()
        if self._simplifiers and self._apply_all(self._simplifiers):
            self._until_stable()
        before = (
            self._process.model(self._original) if any(module not in self._excluded for module in CLAIM_SPEED) else None
        )
        for _ in range(_ROUNDS):
            changed = self._apply_all(FUSIONS)
            if not changed:
                break
            self.before_fusions = before if set(changed) & set(CLAIM_SPEED) else self.before_fusions
            self._until_stable()
        self._apply_all(LAST)

    def _until_stable(self) -> None:
        for _ in range(_ROUNDS):
            if not self._apply_all(CLEANUP):
                return

    def _apply_all(self, modules: Sequence[str]) -> list[str]:
        """Apply passes in one go, or one by one where one of them ends the process; return those that changed it."""
        allowed = [module for module in modules if module not in self._excluded]
        self._say(", ".join(dict.fromkeys(map(_shown, allowed))))
        try:
            answers = self._process.apply_all(allowed)
        except PassError:
            return [module for module in allowed if self._apply(module)]
        return [m for m, done in zip(allowed, answers, strict=True) if self._took(m, done)]

    def _apply(self, module: str) -> bool:
        """Apply one pass; whether it changed something."""
        if module in self._excluded:
            return False
        self._say(_shown(module))
        start = time.monotonic()
        try:
            done = self._process.apply(Step(module))
        except PassError as error:
            self.records.setdefault(module, Record(_shown(module))).seconds += time.monotonic() - start
            done = {"failed": error.reason, "node": error.node}
        return self._took(module, done)

    def _took(self, module: str, done: dict[str, Any]) -> bool:
        """Take what a pass did or why it failed; whether it changed something."""
        if "failed" in done:
            self.records.setdefault(module, Record(_shown(module)))
            self.exclude(module, f"it failed: {done['failed']}", done["node"])
            return False
        if not done["applies"]:
            return False
        self.records.setdefault(module, Record(done["name"], done["requires"], done["before"])).add(done)
        if done["changed"]:
            self.steps.append(Step(module))
        return bool(done["changed"])

    def exclude(self, module: str, reason: str, node: str = "", ratio: float | None = None) -> None:
        """Leave a pass out from now on, and say why."""
        record = self.records[module]
        record.verdict, record.reason, record.node, record.ratio = "rolled back", reason, node, ratio
        record.forget()
        self._excluded.add(module)

    def patterns(self) -> Iterator[Pattern]:
        """Iterate over the patterns that were replaced, then over those that stay."""
        for record in self.records.values():
            yield from record.fused
        for record in self.records.values():
            yield from record.left


def _shown(module: str) -> str:
    return module.rpartition(".")[2].replace("_", " ")
