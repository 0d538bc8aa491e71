"""A call of tp.bench: its options checked, its models opened, its inputs made."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from torchport.benchmark.feeds import feeds_for, inputs_of
from torchport.benchmark.preparation import Common, check_seconds, model_file, settings_by_engine
from torchport.benchmark.rounds import Plan, Point
from torchport.benchmark.torch_candidate import MODES
from torchport.engines.options import check_threads
from torchport.engines.registry import DEFAULT, check_engine
from torchport.errors import InputError, OptionError
from torchport.files import onnx_files
from torchport.inputs.binding import Binder
from torchport.irtools.metadata import read_bounds

_MOST_CLIENTS = 256
_PROCESSES = (3, 100)

Source = str | os.PathLike[str] | ir.Model


def numbers(given: int | Sequence[int] | None) -> tuple[int, ...]:
    """Return what the caller gives as one number or several, each once."""
    if given is None:
        return ()
    return (given,) if isinstance(given, int) else tuple(dict.fromkeys(given))


def check_call(
    sources: Sequence[Source], plan: Plan, engines: Sequence[str] | None, threads: Sequence[int], against: Any
) -> None:
    """Check the options that need no model."""
    if not sources:
        raise OptionError("there is no model to measure", next_step="give an ONNX file")
    for number in threads:
        check_threads(number)
    for number in plan.clients:
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= _MOST_CLIENTS:
            raise OptionError(
                f"{number!r} clients cannot call a model",
                where=f"--clients {number}, in Python clients={number!r}",
                next_step=f"give 1 to {_MOST_CLIENTS}",
            )
    low, high = _PROCESSES
    if not low <= plan.processes <= high:
        raise OptionError(
            f"{plan.processes} processes for each candidate tell no interval",
            where=f"--processes {plan.processes}",
            next_step=f"give {low} to {high}",
        )
    check_seconds(plan.seconds)
    for name in engines if engines is not None else [DEFAULT]:
        if name not in MODES:
            check_engine(name)
        elif not isinstance(against, str):
            raise OptionError(
                f"there is no PyTorch model that '{name}' could run",
                where=f"--engines {name}",
                next_step="give its source: --against model.py:Net",
            )
    if engines is not None and not engines:
        raise OptionError("no engine is named", next_step="name one, or leave it to the default")


@dataclasses.dataclass(frozen=True)
class BenchModel:
    """A model to measure."""

    label: str
    shown: str
    path: str
    graph: ir.Model

    @classmethod
    def open(cls, source: Source, stack: contextlib.ExitStack) -> BenchModel:
        """Open a model; one in memory is written to a file until the stack closes."""
        loaded = onnx_files.as_model(source)
        path = stack.enter_context(model_file(source, loaded))
        shown = os.fspath(source) if isinstance(source, (str, os.PathLike)) else "the model"
        return cls(shown, shown, path, loaded)

    @property
    def outputs(self) -> list[str]:
        """Return the names of the outputs."""
        return [str(v.name) for v in self.graph.graph.outputs]


def labelled(models: Sequence[BenchModel]) -> list[BenchModel]:
    """Name models by their file's name where that tells them apart; the same file gets a number."""
    paths = {model.path for model in models}
    short = {Path(path).name for path in paths}
    names = [Path(m.shown).name if len(short) == len(paths) else m.shown for m in models]
    seen: dict[str, int] = {}
    labels = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        labels.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return [dataclasses.replace(model, label=label) for model, label in zip(models, labels, strict=True)]


def check_interfaces(models: Sequence[BenchModel]) -> None:
    """Check that all models take the same inputs, and give as many outputs."""
    first = models[0]
    for other in models[1:]:
        kinds = [
            {i.name: (i.dtype, None if i.shape is None else len(i.shape)) for i in inputs_of(m.graph)}
            for m in (first, other)
        ]
        if kinds[0] != kinds[1]:
            raise InputError(
                f"{other.shown} and {first.shown} take different inputs",
                where="; ".join(f"{m.shown}: {', '.join(map(str, inputs_of(m.graph)))}" for m in (first, other)),
                next_step="measure models that take the same inputs, or each by itself",
            )
        if len(first.outputs) != len(other.outputs):
            raise InputError(
                f"{other.shown} gives {len(other.outputs)} outputs, {first.shown} {len(first.outputs)}",
                next_step="measure models that give the same outputs, or each by itself",
            )


def points_of(models: Sequence[BenchModel], inputs: Any, at: Mapping[str, Any], common: Common) -> list[Point]:
    """Return a point for each combination of sizes."""
    sizes = {name: numbers(given) for name, given in at.items()}
    if empty := [name for name, numbers in sizes.items() if not numbers]:
        raise OptionError(f"dimension '{empty[0]}' has no size", next_step=f"give one: {empty[0]}=8")
    first = models[0]
    named = [dict(zip(sizes, combination, strict=True)) for combination in itertools.product(*sizes.values())]
    made = feeds_for(first.graph, first.path, inputs, named, common)
    for model in models:
        binder = Binder(inputs_of(model.graph), read_bounds(model.graph.metadata_props))
        for feeds in made:
            binder.bind(feeds)
    return [Point(f"feeds{n}", at, feeds) for n, (at, feeds) in enumerate(zip(named, made, strict=True))]


@dataclasses.dataclass(frozen=True)
class Asked:
    """What the caller wants to be measured."""

    engines: Sequence[str] | None
    threads: tuple[int, ...]
    against: Any
    options: Mapping[str, Any]
    common: Common

    @property
    def names(self) -> list[str]:
        """Return the engines, PyTorch's among them."""
        if self.engines is not None:
            return list(dict.fromkeys(self.engines))
        return [DEFAULT, *(MODES if isinstance(self.against, str) else ())]

    def settings(self) -> dict[str, dict[str, Any]]:
        """Return the options for each engine; one that no engine has is an error."""
        return settings_by_engine([name for name in self.names if name not in MODES], self.options)
