"""The process in which passes change a model: `python -P pass_child.py folder`, commanded by `PassProcess`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import onnx_ir as ir

from torchport.benchmark.child import limit_process, main
from torchport.editing.cleanup import remove_unused
from torchport.editing.transaction import Snapshot
from torchport.files.onnx_files import load
from torchport.irtools.traversal import all_nodes
from torchport.optimization.model_transfer import Sender
from torchport.optimization.pass_process import JOURNAL, read_journal
from torchport.optimization.passes.graph_pass import GraphPass, Work
from torchport.results import to_json


def find_pass(module: str) -> GraphPass:
    """Return the pass that a module has."""
    found: GraphPass = import_module(module).PASS
    return found


class Passes:
    """The model of this process. Each public method is a command; it returns what is answered."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(
        self, source: str, options: Mapping[str, Any], memory: int | None, modules: Sequence[str]
    ) -> dict[str, Any]:
        """Load the model, and fix the dimensions that the user fixes."""
        limit_process(memory)
        self._options = dict(options)
        fix = self._options.pop("fix")
        self._model = load(source)
        self._sender = Sender(self._model)
        for name, size in fix.items():
            from torchport.editing.shapes import set_dim

            set_dim(self._model, name, size)
        self._start = Snapshot(self._model)
        for module in modules:
            with contextlib.suppress(Exception):  # it is said when the pass is applied
                import_module(module)
        return {"nodes": self._count()}

    def reset(self) -> dict[str, Any]:
        """Go back to the model as it was opened."""
        self._start.restore()
        self._start = Snapshot(self._model)
        return {}

    def apply(self, module: str, most: int | None = None) -> dict[str, Any]:
        """Apply a pass. If it raises, the model is as before."""
        start = time.perf_counter()
        found = find_pass(module)
        about = {"name": found.name, "requires": found.requires, "applies": self._options["target"] in found.targets}
        if not about["applies"]:
            return about
        before, snapshot = self._count(), Snapshot(self._model)
        work = Work(**self._options, journal=self._folder / JOURNAL, most=most)
        try:
            _check_interface(self._model, found, work)
        except BaseException:
            snapshot.restore()
            raise
        after = self._count()
        return about | {
            "before": before,
            "after": after,
            "changes": work.changes,
            "changed": bool(work.changes) or before != after,
            "seconds": time.perf_counter() - start,
            "last": work.last,
            "patterns": to_json(work.patterns),
        }

    def apply_all(self, modules: Sequence[str]) -> dict[str, Any]:
        """Apply passes one after the other; one that raises is left out, with the reason and the node in its place."""
        return {"answers": [self._applied(module) for module in modules]}

    def _applied(self, module: str) -> dict[str, Any]:
        try:
            return self.apply(module)
        except Exception as error:  # noqa: BLE001 - whatever a pass raises is its result
            return {"failed": f"{type(error).__name__}: {error}", "node": read_journal(self._folder / JOURNAL)}

    def send(self) -> dict[str, Any]:
        """Write the model for the parent."""
        self._sender.send(self._model, self._folder)
        return {}

    def _count(self) -> int:
        return sum(1 for _ in all_nodes(self._model))


def _check_interface(model: ir.Model, found: GraphPass, work: Work) -> None:
    """Apply a pass, and check that inputs and outputs are called what they were."""
    before = _interface(model)
    found.apply(model, work)
    if work.changes:
        remove_unused(model)  # what the changes left behind counts as theirs
    if _interface(model) != before:
        raise ValueError("it changed the names of the model's inputs or outputs")


def _interface(model: ir.Model) -> list[list[str | None]]:
    return [[value.name for value in values] for values in (model.graph.inputs, model.graph.outputs)]


if __name__ == "__main__":
    main(Passes, ("open", "reset", "apply", "apply_all", "send"))
