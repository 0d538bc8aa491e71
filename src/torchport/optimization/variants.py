"""The model files that a search tries: the model as given, optimized for an engine, in less precision.

Each is made by the verb that the user has too, which proves it or holds it within the tolerance; here it is made once,
in a process of its own, and kept for a search that goes on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torchport.benchmark.command_process import CommandError, CommandProcess
from torchport.engines.protocol import Trial
from torchport.files.filesystem import write_atomically
from torchport.optimization import variant_process
from torchport.optimization.search_space import Choice, Variant
from torchport.optimization.tuned_folder import TunedFolder

_DONE = "done.json"


@dataclasses.dataclass(frozen=True)
class Made:
    """What became of a variant.

    Attributes:
        path: of the file; empty if there is none.
        reason: why there is none.
    """

    path: str
    reason: str = ""


class VariantFiles:
    """Makes variants when they are wanted.

    Args:
        model: the model as given.
        folder: of the search.
        common: libraries and operators of the model.
        memory: the bytes of address space that a process may take; None for no limit.
    """

    def __init__(
        self, model: Path, folder: TunedFolder, *, common: Mapping[str, Any], memory: int | None = None
    ) -> None:
        self._model, self._folder, self._common, self._memory = model, folder, common, memory

    def path(self, variant: Variant, *, seconds: float, options: Mapping[str, Any]) -> Made:
        """Return the file of a variant, and make it where there is none yet.

        Args:
            variant: which one.
            seconds: it may take.
            options: of the verb, beside the variant's own.
        """
        if not variant.verb:
            return Made(str(self._model))
        target = self._folder.variant(f"{variant.name} {variant.engine}".strip())
        done = target.parent / _DONE
        with contextlib.suppress(OSError, ValueError, TypeError):
            return Made(**json.loads(done.read_text(encoding="utf-8")))
        made, final = self._make(variant, target, seconds, {**variant.options, **options})
        if final:
            text = json.dumps(dataclasses.asdict(made))
            write_atomically(done, lambda part: part.write_text(text, encoding="utf-8"))
        return made

    def _make(self, variant: Variant, target: Path, seconds: float, options: Mapping[str, Any]) -> tuple[Made, bool]:
        """Make a variant. The result is final unless the process died: with more time or memory it may be made."""
        given = {**options, "libraries": list(self._common["libraries"])}
        try:
            with self._process(seconds) as process:
                process.ask("make", verb=variant.verb, model=str(self._model), output=str(target), options=given)
        except CommandError as error:
            return Made("", str(error.facts["reason"])), error.facts["refused"] != "died"
        return Made(str(target)), True

    def proof(self, choice: Choice, path: str, *, seconds: float) -> str:
        """Prove a choice beside the model as given. Returns what is wrong; empty if nothing is."""
        trial: Trial = choice.trial
        try:
            with self._process(seconds) as process:
                answer = process.ask(
                    "prove",
                    before=str(self._model),
                    after=path,
                    engine=choice.engine,
                    threads=trial.threads,
                    settings=dict(trial.settings),
                    libraries=list(self._common["libraries"]),
                )
        except CommandError as error:
            return str(error.facts["reason"])
        return str(answer.get("failure", ""))

    @contextlib.contextmanager
    def _process(self, seconds: float) -> Any:
        with CommandProcess(Path(variant_process.__file__), limit=seconds) as process:
            process.ask("prepare", operators=list(self._common["operators"]), memory=self._memory)
            yield process


def _optimized(model: Path, output: Path, options: dict[str, Any]) -> None:
    from torchport.optimization.optimizing import optimize

    optimize(model, output=output, **options)


def _quantized(model: Path, output: Path, options: dict[str, Any]) -> None:
    from torchport.optimization.quantizing import quantize

    quantize(model, output=output, seconds=0, **options)


MAKERS: Mapping[str, Callable[[Path, Path, dict[str, Any]], None]] = {"optimize": _optimized, "quantize": _quantized}
