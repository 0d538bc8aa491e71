"""OpenVINO, in full precision unless asked otherwise.

On a CPU with bfloat16 OpenVINO computes float32 models in bfloat16 by default: no proof at float32's tolerances would
pass. It computes int64 as int32 and float64 as float32, ends the process on strings, leaves out inputs that nothing
reads, and names nodes by the tensors they make. Here it takes and gives what the model says, or refuses.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import openvino as ov
from onnx_ir.passes.common import InlinePass

from torchport.engines import custom_operators
from torchport.engines.openvino_profiler import OpenVinoProfiler
from torchport.engines.profiling import Profiler
from torchport.engines.protocol import Capabilities, Engine, OpenOptions, Runner, Setting, Trial, identity_model
from torchport.errors import EngineError, OptionError, did_you_mean
from torchport.files import onnx_files
from torchport.inputs.binding import unfit_buffer
from torchport.irtools.metadata import read_bounds
from torchport.irtools.names import name_of
from torchport.irtools.traversal import all_nodes
from torchport.irtools.types import operator_name, plain, tensor_infos
from torchport.machine import cpu_flags
from torchport.results import Finding, TensorInfo
from torchport.tensors import Array, numpy_dtype

_TYPES = {
    "float32": ov.Type.f32,
    "float64": ov.Type.f64,
    "float16": ov.Type.f16,
    "bfloat16": ov.Type.bf16,
    "float8_e4m3fn": ov.Type.f8e4m3,
    "float8_e5m2": ov.Type.f8e5m2,
    "bool": ov.Type.boolean,
    **{f"int{bits}": getattr(ov.Type, f"i{bits}") for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": getattr(ov.Type, f"u{bits}") for bits in (8, 16, 32, 64)},
}
_NARROWED = ("int64", "uint64", "uint32")  # computed as int32
_CPU = "CPU"
_AUTO = "auto"  # OpenVINO's own choice
_PRECISIONS = ("f32", "bf16", "f16")
_BFLOAT16 = {"avx512_bf16", "amx_bf16"}  # flags of CPUs on which OpenVINO's own choice is bfloat16
_HINTS = ("latency", "throughput", "cumulative_throughput")


class OpenVino(Engine):
    settings = {
        "device": Setting("CPU, GPU, NPU, AUTO and so on, as OpenVINO names them; CPU unless given", str),
        "precision": Setting("what floats are computed in; f32 unless given", words=(*_PRECISIONS, _AUTO)),
        "hint": Setting("what to be quick at", words=_HINTS),
        "streams": Setting("runs at the same time", int, words=(_AUTO,), most=1024),
        "cache": Setting("a folder to keep compiled models in", str),
        "profile": Setting("count the time of each node", bool),
    }
    takes_threads = True

    def check_settings(self, settings: Mapping[str, Any]) -> None:
        if "device" in settings:
            _device(settings["device"])

    def devices(self) -> Mapping[str, Mapping[str, Any]]:
        return {name.lower(): {"device": name} for name in _core().available_devices if name != _CPU}

    def open(self, model: Path | ir.Model, options: OpenOptions) -> OpenVinoRunner:
        """Open a model. Libraries are not used: OpenVINO has another interface for kernels."""
        loaded = onnx_files.load(model) if isinstance(model, Path) else model
        device = _device(options.settings.get("device", _CPU))
        _check_operators(loaded)
        _check_strings(loaded)
        try:
            with _source(model, loaded) as source:
                compiled = _core().compile_model(_core().read_model(source), device, _properties(options))
        except Exception as error:
            raise _engine_error("OpenVINO refuses the model", error, loaded) from error
        return OpenVinoRunner(compiled, loaded)

    def capabilities(self) -> Capabilities:
        return _capabilities()

    def trials(self, cpus: int) -> tuple[Trial, ...]:
        fewer = sorted({n for n in (cpus // 2, 1) if 0 < n < cpus}, reverse=True)
        return (
            *(Trial(threads=n) for n in fewer),
            Trial(settings={"hint": "latency"}),
            Trial(settings={"hint": "throughput"}),
            *([Trial(settings={"precision": _AUTO}, lossy=True)] if cpu_flags() & _BFLOAT16 else []),
        )

    def profiler(self, path: Path, model: ir.Model, options: OpenOptions) -> Profiler:
        counted = dataclasses.replace(options, settings={**options.settings, "profile": True})
        return OpenVinoProfiler(self.open(path, counted), model)


@functools.cache
def _core() -> ov.Core:
    return ov.Core()


@functools.cache
def _capabilities() -> Capabilities:
    newest = onnx.defs.onnx_opset_version()
    dtypes = [d for d in ir.DataType if d not in (ir.DataType.UNDEFINED, ir.DataType.STRING) and plain(d) in _TYPES]
    taken = [plain(d) for d in dtypes if _has_operators(identity_model(int(d), {"": newest}, 10))]
    version = ov.__version__.partition("-")[0]
    return Capabilities(version, tuple(_core().available_devices), (1, newest), tuple(taken), _has_operators)


def _has_operators(model: onnx.ModelProto) -> bool:
    """Check that OpenVINO converts every operator; other complaints, about shapes say, are no lack of one."""
    try:
        _core().compile_model(_core().read_model(model.SerializeToString()), "CPU", _properties(OpenOptions()))
    except Exception as error:  # noqa: BLE001 - OpenVINO raises RuntimeError for everything; the text tells
        return not re.search("No conversion rule|[Uu]nsupported|not supported|not implemented", str(error))
    return True


def _device(name: str) -> str:
    """Return the device, once it is here; ``AUTO:GPU,CPU`` and ``GPU.1`` name several and one of several.

    Raises:
        OptionError: there is none of that name.
    """
    here = _core().available_devices
    wanted = [
        part.strip() for part in re.split("[:,]", name.upper()) if part.strip() not in ("AUTO", "MULTI", "HETERO")
    ]
    missing = [d for d in wanted if d not in here and not any(h.startswith(f"{d}.") for h in here)]
    if missing:
        raise OptionError(
            f"OpenVINO has no device '{missing[0]}' here",
            where=f"here are: {', '.join(here)}",
            next_step=did_you_mean(missing[0], here, "give one of these", more="or install its driver"),
        )
    return name.upper()


def _properties(options: OpenOptions) -> dict[str, Any]:
    """Return OpenVINO's own options for ours."""
    settings = options.settings
    precision = settings.get("precision", "f32")
    found: dict[str, Any] = {}
    if precision != _AUTO:
        found["INFERENCE_PRECISION_HINT"] = precision
    if precision == "f32":
        found["EXECUTION_MODE_HINT"] = "ACCURACY"
    if options.threads is not None:
        found["INFERENCE_NUM_THREADS"] = options.threads
    if "hint" in settings:
        found["PERFORMANCE_HINT"] = settings["hint"].upper()
    if "streams" in settings:
        found["NUM_STREAMS"] = str(settings["streams"]).upper()
    if "cache" in settings:
        found["CACHE_DIR"] = settings["cache"]
    if "profile" in settings:
        found["PERF_COUNT"] = settings["profile"]
    return found


def _check_operators(model: ir.Model) -> None:
    for node in custom_operators.own_nodes(model):
        if node.op_identifier() not in model.functions:
            raise custom_operators.no_kernel(model, node, loads_libraries=False)


def _check_strings(model: ir.Model) -> None:
    """Refuse strings: OpenVINO frees their memory twice, which ends the process."""
    for value in (*model.graph.inputs, *model.graph.outputs):
        if value.dtype == ir.DataType.STRING:
            raise EngineError(
                f"'{value.name}' holds strings, on which OpenVINO ends the process",
                next_step="name another engine with --engine (engine=)",
            )


@contextlib.contextmanager
def _source(model: Path | ir.Model, loaded: ir.Model) -> Iterator[str | bytes]:
    """Give what OpenVINO reads: the file itself, or the bytes of a model in memory, a file where it is too large."""
    whole = loaded
    if loaded.functions:  # OpenVINO does not read their bodies
        whole = loaded.clone()
        InlinePass()(whole)
    elif isinstance(model, Path):
        yield str(model)
        return
    if onnx_files.weight_bytes(whole) < onnx_files.INLINE_LIMIT:
        yield onnx_files.to_bytes(whole)
        return
    with tempfile.TemporaryDirectory() as folder:
        yield str(onnx_files.save(whole, Path(folder) / "model.onnx", check=False))


class OpenVinoRunner(Runner):
    """Runs a compiled model. Each call has an infer request of its own, taken from those that are free."""

    def __init__(self, compiled: ov.CompiledModel, model: ir.Model) -> None:
        self.compiled, self._model = compiled, model
        self.inputs = tensor_infos(v for v in model.graph.inputs if str(v.name) not in model.graph.initializers)
        given = zip(tensor_infos(model.graph.outputs), compiled.outputs, strict=True)
        self.outputs = tuple(info if info.dtype in _TYPES else _typed(info, port) for info, port in given)
        self.bounds = read_bounds(model.metadata_props)
        self.findings = _findings(model)
        read = {name: index for index, port in enumerate(compiled.inputs) for name in port.get_names()}
        self._read = tuple((read[i.name], i) for i in self.inputs if i.name in read)  # the others are not needed
        self._index = {o.name: n for n, o in enumerate(self.outputs)}
        self._free: dict[frozenset[str], list[Any]] = {}  # infer requests, by the outputs that have buffers

    def run(self, feeds: Mapping[str, Array], only: Sequence[str] | None = None) -> Sequence[Array]:
        return self.run_into(feeds, {}, only)

    def run_into(
        self, feeds: Mapping[str, Array], buffers: Mapping[str, Array], only: Sequence[str] | None = None
    ) -> Sequence[Array]:
        names = list(self._index) if only is None else only
        tensors = [(index, _tensor(info, feeds[info.name])) for index, info in self._read]
        free = self._free.setdefault(frozenset(buffers), [])
        try:
            request = free.pop() if free else self.compiled.create_infer_request()
        except IndexError:  # another thread took it
            request = self.compiled.create_infer_request()
        try:
            for index, (tensor, _) in tensors:
                request.set_input_tensor(index, tensor)
            for name, buffer in buffers.items():
                index = self._index[name]
                request.set_output_tensor(index, _tensor(self.outputs[index], buffer)[0])
            request.infer()
            return [self._output(request, name, buffers.get(name)) for name in names]
        except (RuntimeError, ValueError, TypeError) as error:
            raise _engine_error("OpenVINO fails while running the model", error, self._model) from error
        finally:
            free.append(request)

    def counters(self) -> Any:
        """Return OpenVINO's counters of each kernel; `profile` must be set, and one thread must have run it."""
        return next(iter(self._free.values()))[0].get_profiling_info()

    def _output(self, request: Any, name: str, buffer: Array | None) -> Array:
        index = self._index[name]
        tensor, info = request.get_output_tensor(index), self.outputs[index]
        if buffer is None:
            return _array(tensor, info)
        if tuple(tensor.shape) != buffer.shape:
            raise unfit_buffer(name, buffer.shape, tuple(tensor.shape))
        return buffer


def _typed(info: TensorInfo, port: Any) -> TensorInfo:
    """Return an output whose dtype the model does not say, a tensor inside say, with the one that OpenVINO gives it."""
    kind = port.get_element_type()
    return dataclasses.replace(info, dtype=next((name for name, own in _TYPES.items() if own == kind), "float32"))


def _findings(model: ir.Model) -> tuple[Finding, ...]:
    wide = [v for v in (*model.graph.inputs, *model.graph.outputs) if v.dtype == ir.DataType.DOUBLE]
    if not wide:
        return ()
    return (Finding("OpenVINO computes float64 as float32", f"'{wide[0].name}'"),)


def _tensor(info: TensorInfo, array: Array) -> tuple[ov.Tensor, Array]:
    """Return OpenVINO's view of an array, and the array, which must live as long.

    Raises:
        EngineError: a number does not fit into the int32 that OpenVINO computes in.
    """
    if info.dtype in _NARROWED and array.size:
        least, most = int(array.min()), int(array.max())
        if least < -(2**31) or most >= 2**31:
            raise EngineError(
                f"input '{info.name}' has the number {least if least < -(2**31) else most}; "
                f"OpenVINO computes {info.dtype} as int32",
                next_step="name another engine with --engine (engine=)",
            )
    plain = np.asarray(array, order="C")
    bits = plain if plain.dtype.isbuiltin == 1 else plain.view(f"u{plain.dtype.itemsize}")  # OpenVINO knows numpy's own
    return ov.Tensor(bits, ov.Shape(plain.shape), _TYPES[info.dtype]), plain


def _array(tensor: ov.Tensor, info: TensorInfo) -> Array:
    """Return a copy of an output: the memory is the request's own, which runs again."""
    array = tensor.data.copy()
    wanted = numpy_dtype(info.dtype)
    return array if array.dtype == wanted else array.view(wanted)


_NODE = (
    r"node with name '([^']+)'",
    r"<Node\(\w+\): ([^>]+)>",
    r"friendly_name '([^']+)'",
    r"node ([\w./:]+)_\d+ of type",
)
_NOISE = re.compile(r"^(Exception from|Check '|FrontEnd API failed|Model wasn't|Summary|Errors? during)|^\s*$")
_UNKNOWN = re.compile(r"No conversion rule found for operations: (.*)")


def _engine_error(what: str, error: Exception, model: ir.Model) -> EngineError:
    """OpenVINO's message, without its code paths; with the node it names, by the name the model has."""
    if isinstance(error, EngineError):
        return error
    text = str(error)
    if unknown := _UNKNOWN.search(text):
        return _no_operator(unknown[1], model)
    named = next((found[1] for pattern in _NODE if (found := re.search(pattern, text))), "")
    lines = [line.strip() for line in text.splitlines() if not _NOISE.match(line)]
    reason = (lines or [type(error).__name__])[-1].removeprefix("-- ")[:300]
    return EngineError(f"{what}: {reason}", node=_node_name(named, model))


def _no_operator(names: str, model: ir.Model) -> EngineError:
    """Return the error for operators that OpenVINO does not have; it lists them as ``domain.Operator-17``."""
    kinds = {re.sub(r"-\d+$", "", name.strip()).rpartition(".")[2] for name in names.split(",")}
    if "SequenceMark" in names:  # its own operator, for those that make sequences
        kinds |= {n.op_type for n in all_nodes(model) if "Sequence" in n.op_type}
    node = next((n for n in all_nodes(model) if n.op_type in kinds), None)
    shown = operator_name(node) if node is not None else names
    return EngineError(
        f"OpenVINO {_capabilities().version} does not have the operator {shown} with these inputs and attributes",
        node=name_of(node) if node is not None else "",
        next_step="name another engine with --engine (engine=), or replace the node: torchport edit",
    )


def _node_name(named: str, model: ir.Model) -> str:
    """Return the name of the node that OpenVINO names by itself or by a tensor it makes."""
    if not named:
        return ""
    nodes = list(all_nodes(model))
    own = [n for n in nodes if n.name == named] or [n for n in nodes if named in {v.name for v in n.outputs}]
    return name_of(own[0]) if own else named
