"""ONNX Runtime, with the model's weights handed over without a copy."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from torchport.engines import custom_operators
from torchport.engines.onnxruntime import kernel_types, python_kernels, session_options, workarounds
from torchport.engines.onnxruntime.profiler import OrtProfiler
from torchport.engines.onnxruntime.python_kernels import Needs
from torchport.engines.profiling import Profiler
from torchport.engines.protocol import (
    Capabilities,
    Engine,
    OpenOptions,
    Prepared,
    Runner,
    Setting,
    Trial,
    identity_model,
)
from torchport.errors import EngineError
from torchport.files import onnx_files
from torchport.inputs.binding import unfit_buffer
from torchport.irtools.metadata import read_bounds
from torchport.irtools.serialization import settled
from torchport.irtools.traversal import graphs
from torchport.irtools.types import plain
from torchport.results import TensorInfo
from torchport.tensors import Array

_DTYPES = {"float": "float32", "double": "float64"}
_LENT = {"bfloat16": (onnx.TensorProto.BFLOAT16, np.uint16, ml_dtypes.bfloat16)}
_OLDEST_OPSET = 7  # ONNX Runtime promises nothing below
_IR_VERSION = 10  # one that every supported release reads
_IR_OPSET = 21  # the same
_NEWEST_IR_VERSION = 14  # adds element types only, which ONNX Runtime refuses where a model has them
_PLAIN = OpenOptions()
_QUIET = 4  # its messages come back as exceptions; printing them too helps nobody


class OnnxRuntime(Engine):
    """ONNX Runtime on the CPU, or with the execution providers that are asked for."""

    settings = session_options.SETTINGS
    takes_threads = True

    def setting(self, name: str) -> Setting | None:
        return session_options.setting(name)

    def check_settings(self, settings: Mapping[str, Any]) -> None:
        session_options.asked_providers(settings)

    def devices(self) -> Mapping[str, Mapping[str, Any]]:
        return {name: {"providers": (name,)} for name in session_options.further_providers()}

    def open(self, model: Path | ir.Model, options: OpenOptions) -> Runner:
        """Open a file as any user would, or a model in memory without holding its weights twice."""
        # a hostile file is refused before the engine sees it
        loaded = onnx_files.load(model) if isinstance(model, Path) else model
        needs = python_kernels.needs(loaded, options.libraries)
        how = dataclasses.replace(options, libraries=tuple(map(str, needs.libraries)))
        try:
            if needs.in_python:
                return _InPython(lambda: _open_sharing(*_in_python(loaded, needs, how)), needs.names_in_python)
            if isinstance(model, Path) and readable_ir_version(loaded.ir_version) == loaded.ir_version:
                return OrtRunner(_open(str(model), _options(how), how), loaded, how=how)
            return _open_sharing(loaded, how)
        except EngineError as error:
            raise _named(error, loaded, needs) from error

    def capabilities(self) -> Capabilities:
        return _capabilities()

    def trials(self, cpus: int) -> tuple[Trial, ...]:
        return session_options.trials(cpus)

    def prepare(self, model: ir.Model) -> Prepared:
        return Prepared(model, (*kernel_types.fit(model, has_kernels), *workarounds.apply(model)))

    def profiler(self, path: Path, model: ir.Model, options: OpenOptions) -> Profiler:
        return OrtProfiler(model, options, lambda how: self.open(path, how))


@functools.cache
def _capabilities() -> Capabilities:
    newest = onnx.defs.onnx_opset_version()
    opsets = [n for n in range(_OLDEST_OPSET, newest + 1) if _opens(identity_model(1, {"": n}, _IR_VERSION))]
    kinds = [d for d in ir.DataType if d != ir.DataType.UNDEFINED]
    dtypes = [plain(d) for d in kinds if has_kernels(identity_model(int(d), {"": opsets[-1]}, _IR_VERSION))]
    devices = tuple(ort.get_available_providers())
    return Capabilities(ort.__version__, devices, (opsets[0], opsets[-1]), tuple(dtypes), has_kernels)


@functools.cache
def readable_ir_version(version: int) -> int:
    """Return the IR version to open a model of this one with: the newest that is read, where nothing is lost.

    onnx writes a newer one than ONNX Runtime reads for months after each release.
    """
    if not _IR_VERSION < version <= _NEWEST_IR_VERSION:
        return version
    known = (v for v in range(version, _IR_VERSION, -1) if _opens(identity_model(1, {"": _IR_OPSET}, v)))
    return next(known, version)


def _opens(model: onnx.ModelProto) -> bool:
    try:
        _open(model.SerializeToString(), _options())
    except EngineError:
        return False
    return True


def _in_python(model: ir.Model, needs: Needs, how: OpenOptions) -> tuple[ir.Model, OpenOptions]:
    copy, library = python_kernels.with_python_kernels(model, needs.in_python)
    return copy, dataclasses.replace(how, libraries=(*how.libraries, library))


def _named(error: EngineError, model: ir.Model, needs: Needs) -> EngineError:
    """ONNX Runtime's words for an opset that is too new, or an operator that no library has, in ours."""
    newest, own = (_capabilities().opsets or (0, 0))[1], model.opset_imports.get("", 0)
    if own > newest:
        return EngineError(
            f"ONNX Runtime {ort.__version__} reads opsets up to {newest}, the model has opset {own}",
            next_step=f"convert it: torchport edit model.onnx --set-opset {newest} -o converted.onnx, "
            f"in Python tp.graph.set_opset(model, {newest})",
        )
    unknown = re.search(r"([\w.]+):(\w+)\(-?\d+\) is not a registered function/op", error.what)
    if "Domain already set in registry" in error.what:
        names = ", ".join(p.name for p in needs.libraries)
        return EngineError(
            f"two of the libraries {names} have operators of one domain; ONNX Runtime takes one library for a domain",
            next_step="build their sources into one: torchport ops build a.cc b.cc -o both.so",
        )
    nodes = [n for n in custom_operators.own_nodes(model) if unknown and (n.domain, n.op_type) == unknown.groups()]
    return custom_operators.no_kernel(model, nodes[0], looked_in=needs.libraries) if nodes else error


def _options(how: OpenOptions = _PLAIN) -> ort.SessionOptions:
    options = session_options.session_options(how)
    options.log_severity_level = _QUIET
    for path in map(str, how.libraries):
        _stay_loaded(path)
        options.register_custom_ops_library(path)
    return options


@functools.cache
def _stay_loaded(path: str) -> ctypes.CDLL:
    """Keep a library in this process for good.

    ONNX Runtime unloads it with the options it was registered in. Where the garbage collector takes options and session
    together, the options may go first, and the session's kernels are destroyed by code that is no longer there.
    """
    return ctypes.CDLL(path)


def _open_sharing(model: ir.Model, how: OpenOptions) -> OrtRunner:
    """Open a model that stands next to the PyTorch model it came from: the weights are fed to each run, in place.

    A session that owns its weights copies them at least once, and again where it packs or reorders them. The kernels
    are the same; only optimizations that work on constant weights do not apply.
    """
    graph, arrays = weights_as_inputs(model)
    options = _options(how)
    options.enable_cpu_mem_arena = False  # it would keep the memory of the largest case
    weights = {name: _to_value(a) for name, a in arrays.items()}
    return OrtRunner(_open(graph, options, how), model, weights, how=how)


def _open(source: Any, options: ort.SessionOptions, how: OpenOptions = _PLAIN) -> ort.InferenceSession:
    asked = session_options.asked_providers(how.settings)
    try:
        session = ort.InferenceSession(source, options, providers=asked, enable_fallback=0)
    except Exception as error:
        raise _engine_error("ONNX Runtime refuses the model", error) from error
    session_options.check_active([name for name, _ in asked], session.get_providers())
    return session


_ONLY_DECLARED = ("LSTM", "GRU", "RNN")  # registered for float64 too, but "does not support double yet" when run


@functools.lru_cache(maxsize=4096)
def _has_kernels(model: bytes) -> bool:
    try:
        ort.InferenceSession(model, _options(), providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001 - ONNX Runtime's errors have no common class; the text tells
        return not re.search("NOT_IMPLEMENTED|Type Error|Could not find an implementation", str(error))
    return True


def has_kernels(model: onnx.ModelProto) -> bool:
    """Check that a session of this small model can be made: every operator has a kernel for its types.

    Other complaints, about shapes say, are no lack of a kernel.
    """
    doubles = any(i.type.tensor_type.elem_type == onnx.TensorProto.DOUBLE for i in model.graph.input)
    if doubles and any(node.op_type in _ONLY_DECLARED for node in model.graph.node):
        return False
    return _has_kernels(model.SerializeToString(deterministic=True))


_OTHER_SHAPE = re.compile(r"provided for output '(.*?)' of node .* computed output shape for this run is \{([\d,]*)\}")


class OrtRunner(Runner):
    """Runs an ONNX Runtime session, bfloat16 included, which numpy has no type for."""

    def __init__(
        self,
        session: ort.InferenceSession,
        model: ir.Model,
        weights: Mapping[str, ort.OrtValue] | None = None,
        *,
        how: OpenOptions = _PLAIN,
    ) -> None:
        self.session = session
        self._weights = dict(weights or {})
        declared = {str(v.name): v for v in model.graph.inputs}
        given = [a for a in session.get_inputs() if a.name not in self._weights]
        self.inputs = tuple(_info(a, declared.get(a.name)) for a in given)
        self.outputs = tuple(_info(a, None) for a in session.get_outputs())
        self._names = [o.name for o in self.outputs]
        self._direct = {o.name for o in self.outputs if o.dtype not in _LENT}
        self.bounds = read_bounds(model.metadata_props)
        self._by_value = bool(self._weights) or any(i.dtype in _LENT for i in (*self.inputs, *self.outputs))
        asked = [name for name, _ in session_options.asked_providers(how.settings)]
        self.findings = session_options.fallbacks(session, asked)
        self._options = ort.RunOptions()
        self._options.log_severity_level = _QUIET

    def run(self, feeds: Mapping[str, Array], only: Sequence[str] | None = None) -> Sequence[Array]:
        try:
            return self._run_values(feeds, only) if self._by_value else self._run_arrays(feeds, only)
        except Exception as error:
            raise _engine_error("ONNX Runtime fails while running the model", error) from error

    def _run_arrays(self, feeds: Mapping[str, Array], only: Sequence[str] | None) -> Sequence[Array]:
        outputs: Sequence[Array] = self.session.run(only or self._names, feeds, self._options)
        return outputs

    def run_into(
        self, feeds: Mapping[str, Array], buffers: Mapping[str, Array], only: Sequence[str] | None = None
    ) -> Sequence[Array]:
        names = self._names if only is None else only
        if not set(buffers) <= self._direct:
            return super().run_into(feeds, buffers, only)
        try:
            return self._run_bound(feeds, buffers, names)
        except Exception as error:
            if found := _OTHER_SHAPE.search(str(error)):
                raise unfit_buffer(found[1], buffers[found[1]].shape, found[2].split(",")) from error
            raise _engine_error("ONNX Runtime fails while running the model", error) from error

    def _run_values(self, feeds: Mapping[str, Array], only: Sequence[str] | None) -> Sequence[Array]:
        known = {o.name: o for o in self.outputs}
        wanted = self.outputs if only is None else [known[name] for name in only]
        values = {name: _to_value(array) for name, array in feeds.items()}
        outputs = self.session.run_with_ort_values([o.name for o in wanted], {**values, **self._weights}, self._options)
        return [_from_value(value, info.dtype) for value, info in zip(outputs, wanted, strict=True)]

    def _run_bound(
        self, feeds: Mapping[str, Array], buffers: Mapping[str, Array], names: Sequence[str]
    ) -> Sequence[Array]:
        binding = self.session.io_binding()
        for name, array in feeds.items():
            if array.dtype.name in _LENT or array.dtype.kind in "OU":
                binding.bind_ortvalue_input(name, _to_value(array))
            else:
                binding.bind_cpu_input(name, array)
        for name, value in self._weights.items():
            binding.bind_ortvalue_input(name, value)
        for name in names:
            if name in buffers:
                buffer = buffers[name]
                binding.bind_output(name, "cpu", 0, buffer.dtype, buffer.shape, buffer.ctypes.data)
            else:
                binding.bind_output(name)
        self.session.run_with_iobinding(binding)  # options would take ten times as long as a small run
        if len(buffers) == len(names):
            return [buffers[name] for name in names]
        known = {o.name: o for o in self.outputs}
        outputs = zip(names, binding.get_outputs(), strict=True)
        return [buffers[n] if n in buffers else _from_value(value, known[n].dtype) for n, value in outputs]


def _to_value(array: Array) -> ort.OrtValue:
    lent = _LENT.get(array.dtype.name)
    if lent is None:
        return ort.OrtValue.ortvalue_from_numpy(np.asarray(array, order="C"))
    kind, bits, _ = lent
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(np.asarray(array, order="C").view(bits), kind)


def _from_value(value: ort.OrtValue, dtype: str) -> Array:
    if dtype not in _LENT:
        return value.numpy()
    _, bits, lent = _LENT[dtype]
    pointer = np.ctypeslib.as_array(
        (np.ctypeslib.as_ctypes_type(bits) * int(np.prod(value.shape()))).from_address(value.data_ptr())
    )
    return pointer.reshape(value.shape()).copy().view(lent)


def _info(argument: Any, declared: ir.Value | None) -> TensorInfo:
    name = argument.type.removeprefix("tensor(").removesuffix(")")
    shape: tuple[int | str | None, ...] | None = tuple(argument.shape)
    if declared is not None and declared.shape is None:
        shape = None  # ONNX Runtime shows an unknown rank as rank 0
    return TensorInfo(argument.name, _DTYPES.get(name, name), shape)


def _engine_error(what: str, error: Exception) -> EngineError:
    """ONNX Runtime's message, without its code paths; with the node it names."""
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", str(error)).strip()
    node = re.search(r"(?:Name:|node with name |[Nn]ode ?)'([^']+)'|[Nn]ode ?\(([^)]+)\)", text)
    reason = re.split(r"Status Message: ", text)[-1]
    reason = re.sub(r"/\S+\.(?:cc|h):\d+ \S.*?\) ", "", reason)
    return EngineError(
        f"{what}: {reason.splitlines()[0][:300] if reason else text}",
        node=(node[1] or node[2]) if node else "",
    )


class _InPython(Runner):
    """A session with kernels in Python.

    onnxruntime-extensions 0.15 moves the kernels of all such sessions whenever one more is opened: an earlier one then
    ends the process when it is run or freed. So none is ever freed, past the end of the interpreter too, one that is no
    longer the newest is opened again before it is run, and one thread at a time opens or runs any of them.
    """

    _lock = threading.RLock()
    _newest: _InPython | None = None

    def __init__(self, opened: Callable[[], OrtRunner], names: tuple[str, ...]) -> None:
        self._opened, self.in_python = opened, names
        with self._lock:
            self._open()
        self.inputs, self.outputs = self._runner.inputs, self._runner.outputs
        self.bounds = self._runner.bounds

    @property
    def session(self) -> ort.InferenceSession:
        return self._runner.session

    def _open(self) -> None:
        self._runner = self._opened()
        _InPython._newest = self
        for kept in (self._runner.session, self._runner.session._sess):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))

    def run(self, feeds: Mapping[str, Array], only: Sequence[str] | None = None) -> Sequence[Array]:
        with self._lock:
            if _InPython._newest is not self:
                self._open()
            try:
                return self._runner.run(feeds, only)
            finally:
                python_kernels.raise_failure()


# Hand a model's weights to an engine beside its graph, without copying them.

_SMALL = 1 << 12  # weights below this stay in the graph: shapes and axes, which engines want to know beforehand


def weights_as_inputs(model: ir.Model) -> tuple[bytes, dict[str, Array]]:
    """The model's bytes with its weights as inputs, and the weights by name. The model itself is left as it was."""
    graph = model.graph
    inputs = list(graph.inputs)
    moved = [v for v in graph.initializers.values() if v.const_value is not None and v.const_value.nbytes >= _SMALL]
    tensors = [v.const_value for v in moved]
    order = list(graph.initializers.values())
    kept = {v: v.const_value for v in _initializers(model) if v not in moved and v.const_value is not None}
    try:
        for value, stored in kept.items():
            value.const_value = settled(stored)  # an engine that gets bytes has no folder to find a data file in
        for value in moved:
            del graph.initializers[str(value.name)]
            value.const_value = None
            if value not in inputs:
                graph.inputs.append(value)
        proto = ir.to_proto(model)
        proto.ir_version = readable_ir_version(proto.ir_version)
        graph_bytes = proto.SerializeToString(deterministic=True)
    finally:
        for value, stored in kept.items():
            value.const_value = stored
        graph.inputs[:] = inputs
        graph.initializers.clear()
        for value, tensor in zip(moved, tensors, strict=True):
            value.const_value = tensor
        for value in order:
            graph.initializers.add(value)
    arrays = {str(v.name): t.numpy() for v, t in zip(moved, tensors, strict=True) if t is not None}
    return graph_bytes, arrays


def _initializers(model: ir.Model) -> list[ir.Value]:
    return [v for g in graphs(model) for v in g.initializers.values()]
