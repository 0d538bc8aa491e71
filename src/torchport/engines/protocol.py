"""The interface of an engine: open a model, say what runs, and prepare a model for the engine's known faults.

An engine is a subclass of `Engine`, registered under the entry point group `torchport.engines`. `open` is all it must
have; `capabilities` and `prepare` say nothing and change nothing by default, and `profiler` is for engines that count
the time of their kernels.
"""

from __future__ import annotations

import abc
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

from torchport.inputs.binding import unfit_buffer
from torchport.results import Bound, Finding, TensorInfo
from torchport.tensors import Array

if TYPE_CHECKING:
    from torchport.engines.profiling import Profiler


@dataclasses.dataclass(frozen=True)
class OpenOptions:
    """How a model is opened; plain data, so that another process can open a model the same way.

    Attributes:
        libraries: operator libraries that the user trusts, by path.
        threads: the number of threads to compute with; None for the engine's own choice.
        settings: what only this engine knows, by name; checked against its `settings`.
    """

    libraries: tuple[str | os.PathLike[str], ...] = ()
    threads: int | None = None
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Trial:
    """Options that may be faster than an engine's defaults, for a search to measure.

    Attributes:
        threads: to compute with; None for the engine's own choice.
        settings: of the engine.
        lossy: the engine computes with less precision.
    """

    threads: int | None = None
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    lossy: bool = False


@dataclasses.dataclass(frozen=True)
class Setting:
    """An option that one engine takes.

    Attributes:
        about: one line for the user.
        kind: `str`, `bool`, `int`, or `list` of texts; None if only words are taken.
        words: the words that are taken.
        least: the smallest number that is taken.
        most: the largest.
    """

    about: str
    kind: type | None = None
    words: tuple[str, ...] = ()
    least: int = 1
    most: int = 1 << 16

    @property
    def taken(self) -> str:
        """Return what may be given, for a message."""
        kinds = {bool: "true or false", int: f"a number from {self.least} to {self.most}", str: "a text"}
        kinds[list] = "a list of names"
        words = [f"one of {', '.join(self.words)}"] if self.words else []
        return " or ".join([*words, *([kinds[self.kind]] if self.kind else [])])


class Runner(abc.ABC):
    """A model opened in an engine. Many threads may run it at once.

    Attributes:
        in_python: operators that PyTorch runs, because the engine has no kernel of them.
        bounds: sizes that the model is good for, by dimension, from the model's metadata.
        findings: what the user should know of how it runs, for instance which nodes another device runs.
    """

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    in_python: tuple[str, ...] = ()
    bounds: Mapping[str, Bound] = MappingProxyType({})
    findings: tuple[Finding, ...] = ()

    @abc.abstractmethod
    def run(self, feeds: Mapping[str, Array], only: Sequence[str] | None = None) -> Sequence[Array]:
        """Return the outputs in order; with `only`, those outputs in its order.

        Args:
            feeds: every input by name; names, dtypes and shapes were checked.
            only: names of the outputs to compute; all if None.

        Raises:
            EngineError: the engine fails, with the `node` at fault where the engine names it.
        """

    def run_into(
        self, feeds: Mapping[str, Array], buffers: Mapping[str, Array], only: Sequence[str] | None = None
    ) -> Sequence[Array]:
        """Return the outputs as `run` does; those with a buffer are written into it.

        An engine that can compute into a caller's memory does without the copy.

        Args:
            feeds: every input by name.
            buffers: C-contiguous arrays by the names of outputs, each of the output's dtype.
            only: names of the outputs to compute; all if None.

        Raises:
            InputError: a buffer has another shape than its output.
        """
        names = [o.name for o in self.outputs] if only is None else list(only)
        return [
            copied_into(name, array, buffers[name]) if name in buffers else array
            for name, array in zip(names, self.run(feeds, only), strict=True)
        ]


def copied_into(name: str, array: Array, buffer: Array) -> Array:
    """Return the buffer with an output's numbers in it.

    Raises:
        InputError: their shapes differ.
    """
    if array.shape != buffer.shape:
        raise unfit_buffer(name, buffer.shape, array.shape)
    np.copyto(buffer, array)
    return buffer


@dataclasses.dataclass(frozen=True)
class Workaround:
    """A change of a model that works around a fault of an engine.

    Attributes:
        name: of the workaround, for the model's metadata.
        nodes: the number of nodes that were changed.
        finding: what the user should know, for instance that nodes run slower; empty if nothing.
    """

    name: str
    nodes: int
    finding: str = ""


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A model that an engine runs right, with the workarounds in it."""

    model: ir.Model
    workarounds: tuple[Workaround, ...] = ()

    @property
    def findings(self) -> list[Finding]:
        return [Finding(w.finding) for w in self.workarounds if w.finding]


@dataclasses.dataclass(frozen=True)
class Capabilities:
    """What an engine can run.

    Attributes:
        version: of the engine.
        devices: the engine's own names for what it computes on.
        opsets: the oldest and the newest opset of ONNX it reads; None if unknown.
        dtypes: the tensor types it takes, ``float32`` and so on.
        runs: returns True if the engine has a kernel for every node of a small model; None if the engine cannot tell.
    """

    version: str = ""
    devices: tuple[str, ...] = ()
    opsets: tuple[int, int] | None = None
    dtypes: tuple[str, ...] = ()
    runs: Callable[[onnx.ModelProto], bool] | None = None


class Engine(abc.ABC):
    """A library that runs ONNX models.

    Attributes:
        settings: the options that only this engine takes.
        takes_threads: the number of threads can be set.
    """

    settings: Mapping[str, Setting] = MappingProxyType({})
    takes_threads: bool = False

    def setting(self, name: str) -> Setting | None:
        """Return the setting of that name; None if there is none."""
        return self.settings.get(name)

    @abc.abstractmethod
    def open(self, model: Path | ir.Model, options: OpenOptions) -> Runner:
        """Open an ONNX file, or a model in memory.

        Raises:
            EngineError: the engine refuses the model.
        """

    def check_settings(self, settings: Mapping[str, Any]) -> None:  # noqa: B027 - most engines have nothing to check
        """Check what depends on this machine: that a device or provider is here. Each value was checked before.

        Raises:
            OptionError: it is not.
        """

    def devices(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the settings for each further device that is here, by a short name; the default one is left out."""
        return {}

    def capabilities(self) -> Capabilities:
        """Return what the engine can run, as far as it knows."""
        return Capabilities()

    def trials(self, cpus: int) -> tuple[Trial, ...]:
        """Return options worth measuring on a machine with so many CPUs, beside the defaults."""
        return ()

    def prepare(self, model: ir.Model) -> Prepared:
        """Return an equal model without what this engine computes wrong, crashes on, or has no kernels for.

        `model` itself may be changed, since a large one is not copied: give a clone to keep it.
        """
        return Prepared(model)

    def profiler(self, path: Path, model: ir.Model, options: OpenOptions) -> Profiler:
        """Open a model with counters of the time of each kernel; `open_profiler` asks only an engine that has this.

        Args:
            path: the model's file.
            model: the same model; its nodes are those that kernels name.
            options: as for `open`.

        Raises:
            EngineError: the engine refuses the model.
        """
        raise NotImplementedError


# Small models that ask an engine about one operator.


@dataclasses.dataclass(frozen=True)
class Use:
    """An operator with the types it is used with."""

    domain: str
    op_type: str
    inputs: tuple[ir.DataType | None, ...]
    outputs: tuple[ir.DataType | None, ...]


def use_of(node: ir.Node) -> Use:
    """Return a node's operator with the types the node has."""
    inputs = tuple(None if v is None else v.dtype for v in node.inputs)
    return Use(node.domain, node.op_type, inputs, tuple(v.dtype for v in node.outputs))


def one_node(node: ir.Node, use: Use, model: ir.Model) -> onnx.ModelProto:
    """Return a model of this one node, with the types of `use`."""
    names = [f"input{i}" if value is not None else "" for i, value in enumerate(node.inputs)]
    outputs = [f"output{i}" if value.name else "" for i, value in enumerate(node.outputs)]
    attributes = [ir.serde.serialize_attribute(a) for a in node.attributes.values() if not a.is_ref()]
    for attribute in attributes:
        if attribute.name in ("to", "dtype") and attribute.i == int(node.outputs[0].dtype or 0):
            attribute.i = int(use.outputs[0] or 0)
    proto = helper.make_node(node.op_type, names, outputs, domain=node.domain)
    proto.attribute.extend(attributes)
    graph = helper.make_graph(
        [proto],
        "one",
        [_info(name, kind) for name, kind in zip(names, use.inputs, strict=True) if name],
        [_info(name, kind) for name, kind in zip(outputs, use.outputs, strict=True) if name],
    )
    imports = [helper.make_opsetid(domain, version) for domain, version in model.opset_imports.items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=model.ir_version)


def _info(name: str, kind: ir.DataType | None) -> onnx.ValueInfoProto:
    if kind is None:
        return onnx.ValueInfoProto(name=name)
    return helper.make_tensor_value_info(name, int(kind), None)


def identity_model(dtype: int, imports: Mapping[str, int], ir_version: int) -> onnx.ModelProto:
    """Return a model that gives its input back: it shows if an engine takes a dtype, an opset or an IR version."""
    infos = [helper.make_tensor_value_info(name, dtype, [1]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "probe", infos[:1], infos[1:])
    opsets = [helper.make_opsetid(domain, version) for domain, version in imports.items()]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)
