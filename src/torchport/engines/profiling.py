"""The interface of an engine that counts the time of its kernels: `Engine.profiler` returns a `Profiler`.

An engine fuses nodes, leaves some out and inserts others. A `Kernel` is one step of what it really runs, with the
nodes of the model that the step computes.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir

from torchport.engines.protocol import Engine, OpenOptions
from torchport.engines.registry import DEFAULT, engine_names, find_engine
from torchport.errors import EngineMissingError, OptionError
from torchport.tensors import Array


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One step of an engine.

    Attributes:
        name: the engine's own name of it.
        operator: the engine's own name of what it computes.
        seconds: of one run, all calls together; without the kernels inside it.
        calls: in one run.
        nodes: the model's nodes that it computes; none where the engine inserted it.
        beside: of an inserted kernel: the nodes whose data it changes.
        inside: the position of the loop or branch that it runs in; None for the main graph.
        device: that runs it, in the engine's own words.
        dtype: of what it computes with, float32 say; empty if the engine does not tell.
        moved: bytes of its inputs and outputs as the engine counts them; None if it does not.
    """

    name: str
    operator: str
    seconds: float
    calls: float
    nodes: tuple[ir.Node, ...]
    beside: tuple[ir.Node, ...] = ()
    inside: int | None = None
    device: str = ""
    dtype: str = ""
    moved: int | None = None


@dataclasses.dataclass(frozen=True)
class Span:
    """One call of a kernel in one run: its position among the kernels, its start and length in seconds."""

    kernel: int
    start: float
    seconds: float
    thread: int = 0


@dataclasses.dataclass(frozen=True)
class KernelTimes:
    """The kernels of a model with their times.

    Attributes:
        kernels: in the order in which the engine runs them.
        runs: the number of runs that the times are means of.
        quickest: these runs are the quicker half, as what else the machine does only slows them; False for all runs.
        spans: the calls of one typical run; laid end to end where the engine does not tell when they start.
        measured_starts: the spans start when they did; False where they are laid end to end.
        removed: nodes of the model that no kernel computes: folded, or not needed.
    """

    kernels: tuple[Kernel, ...]
    runs: int
    quickest: bool
    spans: tuple[Span, ...] = ()
    measured_starts: bool = True
    removed: tuple[ir.Node, ...] = ()

    @property
    def seconds(self) -> float:
        """Return the time of all kernels of one run."""
        return sum(kernel.seconds for kernel in self.kernels)


class Profiler(abc.ABC):
    """A model opened with counters of time. It is run as often as wanted, then asked once."""

    in_python: tuple[str, ...] = ()

    @abc.abstractmethod
    def run(self, feeds: Mapping[str, Array]) -> None:
        """Run the model once."""

    @abc.abstractmethod
    def warm(self) -> None:
        """Leave out what was run until now."""

    @abc.abstractmethod
    def times(self) -> KernelTimes:
        """Return the kernels of the runs since `warm`. The model cannot be run after it."""

    @abc.abstractmethod
    def close(self) -> None:
        """Remove what the profiler wrote."""


def open_profiler(name: str, path: Path, model: ir.Model, options: OpenOptions) -> Profiler:
    """Open a model with counters of time.

    Args:
        name: of the engine.
        path: the model's file.
        model: the same model; its nodes are those that kernels name.
        options: for the engine.

    Raises:
        OptionError: the engine does not count the time of its kernels.
    """
    return check_profiles(name).profiler(path, model, options)


def check_profiles(name: str) -> Engine:
    """Return an engine that counts the time of its kernels.

    Raises:
        OptionError: it does not.
    """
    engine = find_engine(name)
    if _profiles(engine):
        return engine
    able = [other for other in (DEFAULT, *engine_names()) if other != name and _is_able(other)]
    raise OptionError(
        f"the engine '{name}' does not count the time of its nodes",
        where=f"--engine {name}, in Python engine='{name}'",
        next_step=f"profile it in one that does: {', '.join(dict.fromkeys(able)) or 'none is here'}",
    )


def _profiles(engine: Engine) -> bool:
    return type(engine).profiler is not Engine.profiler


def _is_able(name: str) -> bool:
    try:
        return _profiles(find_engine(name))
    except EngineMissingError:
        return False
