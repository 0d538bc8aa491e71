"""Passes whose outcome is verified, and measured where they claim speed; those at fault are found and left out."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from torchport.errors import ProofError, TorchportError
from torchport.files.onnx_files import save, weight_bytes
from torchport.irtools.metadata import OPTIMIZED
from torchport.irtools.traversal import all_nodes
from torchport.optimization.pass_process import PassProcess, Step
from torchport.optimization.pass_runs import CLAIM_SPEED, PassRuns
from torchport.optimization.result import Optimized, Target
from torchport.results import Proof
from torchport.verification.equivalence import prove_same

_PATIENCE = 0.2  # seconds of a run, from which on it is verified with few cases
_LARGE = 256 << 20  # bytes of weights, from which on a second thread is worth its start


class ProvenPasses:
    """Applies passes to one model.

    Args:
        process: applies them.
        original: the model in this process.
        target: the engine it is for.
        simplifiers: other programs to try.
        inputs: arrays to verify with; made up if None.
        libraries: operator libraries that the model needs.
        say: called with one line at each step.
    """

    def __init__(
        self,
        process: PassProcess,
        original: ir.Model,
        target: Target,
        simplifiers: Sequence[str],
        inputs: Mapping[str, Any] | None,
        libraries: Sequence[str | os.PathLike[str]],
        say: Callable[[str], None],
    ) -> None:
        self._process, self._original, self._target = process, original, target
        self._inputs, self._libraries, self._say = inputs, libraries, say
        self._runs = PassRuns(process, original, simplifiers, say)

    def run(self, *, measure: bool) -> Optimized:
        """Return the model after all passes that hold."""
        model, proof = self._proven()
        if measure and self._runs.before_fusions is not None and not self._is_faster(model):
            model, proof = self._proven()
        summary = proof.summary()
        error = summary["max_abs"]
        model.metadata_props[OPTIMIZED] = json.dumps({"for": self._target, "proof": summary}, sort_keys=True)
        return Optimized(
            model,
            self._target,
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
        from torchport.optimization.speed_ratio import representative, speed_ratio

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
        self._say("verifying")
        model = self._process.model(self._original)
        threads = 1 if weight_bytes(model) < _LARGE else None
        proof = prove_same(
            *(self._original, model),
            inputs=self._inputs,
            libraries=self._libraries,
            patience=_PATIENCE,
            threads=threads,
        )
        return model, proof

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
