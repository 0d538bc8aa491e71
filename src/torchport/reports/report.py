"""tp.report"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from torchport._version import __version__
from torchport.errors import OptionError
from torchport.files.filesystem import check_target, write_atomically
from torchport.files.onnx_files import ModelLike
from torchport.inspection.describe import describe, opened, reading
from torchport.inspection.lint.linter import lint
from torchport.irtools.names import name_of
from torchport.reports.model_data import ModelData
from torchport.reports.model_tables import facts, tables, verdict
from torchport.reports.page import check_viewer, page
from torchport.reports.result_parts import Parts, parts_of
from torchport.results import Record, to_json
from torchport.terminal import human_bytes

SCHEMA = 1
"""The version of a page's data; viewer/source/data.ts reads this one."""

Progress = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Report(Record):
    """A page that was written.

    Attributes:
        path: the HTML file.
        bytes: its size.
        nodes: the number of nodes it shows.
        faults: the number of findings it lists.
        agrees: whether the model agrees with what it was held against; None if it was held against nothing.
    """

    path: str
    bytes: int
    nodes: int
    faults: int
    agrees: bool | None = None

    def __str__(self) -> str:
        findings = "no findings" if not self.faults else f"{self.faults} finding{'s' * (self.faults > 1)}"
        head = f"wrote {self.path}: {self.nodes:,} nodes, {findings}, {human_bytes(self.bytes)}"
        if self.agrees is None:
            return head
        return f"{head}\n  {'the models agree' if self.agrees else 'the models DIFFER: the page shows where'}"


def report(
    model: ModelLike,
    output: str | os.PathLike[str],
    *,
    results: Sequence[object] = (),
    against: Any = None,
    inputs: Any = None,
    profile: bool = False,
    at: Mapping[str, int] | None = None,
    progress: Progress | None = None,
) -> Report:
    """Write one HTML page that shows a model: summary, findings, graph, and what other verbs found of it.

    The page needs no network and opens from the disk.

    Args:
        model: an ONNX file, or a model in memory.
        output: the HTML file to write.
        results: what `compare`, `profile`, `verify`, `bench`, `diff`, `export`, `optimize`, `quantize` or
            `tune` gave back for this model.
        against: a PyTorch or ONNX model to compare with, tensor by tensor; the graph shows the errors.
        inputs: for the comparison and the profile: a tuple in order, or a mapping by name. Made up if None.
        profile: measure the time of each kernel; the graph shows the times.
        at: sizes of dynamic dimensions for the profile, ``{"batch": 8}``.
        progress: called with one line at each step.

    Raises:
        FileError: the model is missing, broken or of another format.
        SaveError: the page cannot be written there.
        ViewerMissingError: torchport runs from its sources, and the viewer has not been built.

    Example:
        >>> tp.report("model.onnx", "report.html", profile=True)
        >>> tp.report("model.onnx", "report.html", against=model, inputs=(x,))
        >>> tp.report("model.onnx", "report.html", results=[tp.bench(["model.onnx"])])
    """
    target = check_page(output)
    _check_asked(against, inputs, profile, at)
    say = progress or (lambda text: None)
    say("reading the model")
    loaded, path = opened(model)
    with reading(model):
        shown = ModelData(loaded)
    found = list(results)
    if against is not None:
        found.append(_compared(against, model, inputs, progress))
    if profile:
        found.append(_profiled(path or loaded, inputs, at, progress))
    say("writing the page")
    numbers = numbers_of(shown)
    parts = [parts_of(result, numbers) for result in found]
    return _written(target, page_data(model, loaded, shown, parts), parts)


def page_of(model: ModelLike, *, results: Sequence[object] = (), served: bool = False) -> str:
    """Return the page of a model; `served`: it may ask the server that it comes from."""
    check_viewer()
    loaded, _ = opened(model)
    with reading(model):
        shown = ModelData(loaded)
    data = page_data(model, loaded, shown, [parts_of(result, numbers_of(shown)) for result in results])
    return page({**data, "served": served}, title=data["title"])


def numbers_of(shown: ModelData) -> dict[str, int]:
    """Return the number of each node by its name; the first of several."""
    return {name_of(node): n for n, node in reversed(list(enumerate(shown.nodes)))}


def _check_asked(against: Any, inputs: Any, profile: bool, at: Mapping[str, int] | None) -> None:
    if at and not profile:
        raise OptionError("sizes are for a profile, and none was asked for", where="--at", next_step="add --profile")
    if inputs is not None and against is None and not profile:
        raise OptionError(
            "nothing was asked for that needs inputs", where="--input", next_step="add --against MODEL or --profile"
        )


def _compared(against: Any, model: ModelLike, inputs: Any, progress: Progress | None) -> object:
    from torchport.comparison.compare import compare

    return compare(against, model, inputs, layers=True, progress=progress)


def _profiled(model: str | ir.Model, inputs: Any, at: Mapping[str, int] | None, progress: Progress | None) -> object:
    from torchport.benchmark.profiling import profile

    return profile(model, inputs=inputs, at=at, progress=progress)


def page_data(model: ModelLike, loaded: ir.Model, shown: ModelData, parts: Sequence[Parts]) -> dict[str, Any]:
    """Return all that a page holds."""
    description = dataclasses.replace(describe(loaded), path=_name(model))
    verdicts = [part.verdict for part in parts if part.verdict is not None] or [verdict(description)]
    return {
        "schema": SCHEMA,
        "torchport": __version__,
        "title": _name(model) or description.name or "model",
        "verdicts": verdicts,
        "facts": facts(description),
        "plots": [plot for part in parts for plot in part.plots],
        "tables": [*(t for part in parts for t in part.tables), *tables(description)],
        "faults": to_json(lint(model)),
        "model": shown.json_form(),
        "overlays": [overlay for part in parts for overlay in part.overlays],
    }


def _name(model: ModelLike) -> str:
    """Return the file's name without its folder: a page may be sent to somebody who need not know it."""
    return Path(model).name if isinstance(model, (str, os.PathLike)) else ""


def check_page(output: str | os.PathLike[str]) -> Path:
    """Check before long work that a page can be written, and is not written over a model by mistake."""
    target = check_target(output)
    check_viewer()
    if target.suffix.lower() not in (".html", ".htm"):
        raise OptionError("the report is an HTML page", where=str(target), next_step="give a path such as report.html")
    return target


def _written(target: Path, data: dict[str, Any], parts: Sequence[Parts]) -> Report:
    text = page(data, title=data["title"])
    write_atomically(target, lambda part: part.write_text(text, encoding="utf-8"))
    states = [part.verdict["state"] for part in parts if part.verdict is not None]
    return Report(
        path=str(target),
        bytes=target.stat().st_size,
        nodes=len(data["model"]["nodes"]["name"]),
        faults=len(data["faults"]),
        agrees=all(state == "good" for state in states) if states else None,
    )
