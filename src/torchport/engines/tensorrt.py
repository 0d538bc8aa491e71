"""TensorRT through its own package, on a machine with an NVIDIA GPU.

A plan is built for each set of input shapes that the model meets, and kept: building takes seconds, runs are quick.
torch lends the memory on the device. No machine of ours has a GPU: tests run this module with a stand-in for TensorRT.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir
import tensorrt as trt

from torchport.engines import custom_operators
from torchport.engines.protocol import Capabilities, Engine, OpenOptions, Runner, Setting
from torchport.errors import EngineError, first_line
from torchport.files import onnx_files
from torchport.irtools.metadata import read_bounds
from torchport.irtools.types import tensor_infos
from torchport.tensors import Array, to_numpy, to_torch

_FLAGS = {"fp16": "FP16", "bf16": "BF16", "tf32": "TF32"}
_OPSETS = (9, 20)  # of TensorRT 10.0, the first that is supported here

Shapes = tuple[tuple[int, ...], ...]


class TensorRt(Engine):
    settings = {
        "precision": Setting("what float32 may be computed in; f32 unless given", words=("f32", *_FLAGS)),
        "workspace": Setting("MiB of memory on the device that a plan may take", int, most=1 << 20),
    }

    def open(self, model: Path | ir.Model, options: OpenOptions) -> TensorRtRunner:
        """Open a model. Libraries are not used: TensorRT has plugins of its own."""
        loaded = onnx_files.load(model) if isinstance(model, Path) else model
        for node in custom_operators.own_nodes(loaded):
            if node.op_identifier() not in loaded.functions:
                raise custom_operators.no_kernel(loaded, node, loads_libraries=False)
        _check_device()
        return TensorRtRunner(loaded, model, options)

    def capabilities(self) -> Capabilities:
        return Capabilities(trt.__version__, _devices(), _OPSETS, ("float32", "float16", "int64", "int32", "bool"))


def _devices() -> tuple[str, ...]:
    import torch

    return tuple(torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count()))


def _check_device() -> None:
    if not _devices():
        raise EngineError(
            "TensorRT needs an NVIDIA GPU, and torch sees none here",
            next_step="name another engine with --engine (engine=), or install the driver and torch for CUDA",
        )


class TensorRtRunner(Runner):
    """Runs plans, one thread at a time: an execution context has one set of addresses."""

    def __init__(self, model: ir.Model, source: Path | ir.Model, options: OpenOptions) -> None:
        self._logger = trt.Logger(trt.Logger.ERROR)
        self._builder = trt.Builder(self._logger)
        self._network = self._builder.create_network(0)
        self._parser = trt.OnnxParser(self._network, self._logger)  # the network refers to its weights
        _parse(self._parser, source)
        self._options = options
        self._lock = threading.Lock()
        self._contexts: dict[Shapes, Any] = {}
        self.inputs = tensor_infos(v for v in model.graph.inputs if str(v.name) not in model.graph.initializers)
        self.outputs = tensor_infos(model.graph.outputs)
        self.bounds = read_bounds(model.metadata_props)

    def run(self, feeds: Mapping[str, Array], only: Sequence[str] | None = None) -> Sequence[Array]:
        names = [o.name for o in self.outputs] if only is None else only
        try:
            with self._lock:
                outputs = self._run(feeds)
        except EngineError:
            raise
        except Exception as error:
            raise EngineError(f"TensorRT fails while running the model: {first_line(error)}") from error
        return [outputs[name] for name in names]

    def _run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        import torch

        context = self._context({name: array.shape for name, array in feeds.items()})
        tensors = {name: to_torch(array).contiguous().to("cuda") for name, array in feeds.items()}
        for info in self.outputs:
            shape = tuple(context.get_tensor_shape(info.name))
            tensors[info.name] = torch.empty(shape, dtype=getattr(torch, info.dtype), device="cuda")
        for name, tensor in tensors.items():
            context.set_tensor_address(name, tensor.data_ptr())
        stream = torch.cuda.current_stream()
        if not context.execute_async_v3(stream.cuda_stream):
            raise EngineError("TensorRT fails while running the model: it gives no reason")
        stream.synchronize()
        return {info.name: to_numpy(tensors[info.name]) for info in self.outputs}

    def _context(self, shapes: Mapping[str, tuple[int, ...]]) -> Any:
        """Return the context for inputs of these shapes; its plan is built where there is none yet."""
        key = tuple(shapes.values())
        if key not in self._contexts:
            plan = self._builder.build_serialized_network(self._network, self._config(shapes))
            if plan is None:
                raise EngineError(f"TensorRT builds no plan for inputs of the shapes {shapes}")
            context = trt.Runtime(self._logger).deserialize_cuda_engine(plan).create_execution_context()
            for name, shape in shapes.items():
                context.set_input_shape(name, shape)
            self._contexts[key] = context
        return self._contexts[key]

    def _config(self, shapes: Mapping[str, tuple[int, ...]]) -> Any:
        config, settings = self._builder.create_builder_config(), self._options.settings
        config.clear_flag(trt.BuilderFlag.TF32)  # on by default, and too coarse for a proof at float32's tolerances
        if (precision := settings.get("precision", "f32")) in _FLAGS:
            config.set_flag(getattr(trt.BuilderFlag, _FLAGS[precision]))
        if "workspace" in settings:
            config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, settings["workspace"] << 20)
        profile = self._builder.create_optimization_profile()
        for name, shape in shapes.items():
            profile.set_shape(name, shape, shape, shape)
        config.add_optimization_profile(profile)
        return config


def _parse(parser: Any, source: Path | ir.Model) -> None:
    """Read a model into the parser's network.

    Raises:
        EngineError: TensorRT does not take a node of it.
    """
    if parser.parse_from_file(str(source)) if isinstance(source, Path) else parser.parse(onnx_files.to_bytes(source)):
        return
    fault = parser.get_error(0) if parser.num_errors else None
    reason = fault.desc() if fault is not None else "it gives no reason"
    node = fault.node_name() if fault is not None else ""
    raise EngineError(f"TensorRT {trt.__version__} refuses the model: {reason}", node=node)
