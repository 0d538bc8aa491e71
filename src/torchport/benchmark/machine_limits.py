"""How many multiply-adds and bytes in a second this machine manages, measured with an engine and kept in the cache.

Matrix products give the rate of each dtype. Elementwise operators on tensors of several sizes give the bandwidth: what
fits into caches moves faster. The quickest measurement counts, as what else runs here only slows them down; where a
model is quicker than a limit, the limit is measured again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from torchport.benchmark.kernel_costs import limited_by, without_counting
from torchport.benchmark.profile_report import Limits, NodeTime
from torchport.engines.onnxruntime.headers import cache
from torchport.engines.profiling import KernelTimes, open_profiler
from torchport.engines.protocol import Engine, OpenOptions
from torchport.engines.registry import find_engine
from torchport.errors import TorchportError
from torchport.files import onnx_files
from torchport.machine import cpu_name
from torchport.tensors import Array, numpy_dtype

_SIDES = (192, 384, 512)  # of the matrices
_IMAGE = (64, 28)  # channels and side of what is convolved
_KERNEL = 3
_SIZES = (1 << 18, 1 << 20, 8 << 20, 128 << 20)  # bytes read and written by one operator
_FLOATS = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
_TIMES = 8
_RUNS = 6
_CHAIN = 50  # operators on one number
_SECONDS = 1.0  # after which no further measurement of one figure begins
_OPSET = 17
_FORM = 3  # of the file in the cache


def machine_limits(engine: str, options: OpenOptions, say: Callable[[str], None], *, again: bool = False) -> Limits:
    """Return the limits at the number of threads in the options, from the cache if they were measured before.

    Args:
        engine: to measure with.
        options: as for the model.
        say: called with one line before it takes seconds.
        again: measure once more, and keep the larger of both.

    Raises:
        TorchportError: the engine cannot be measured with these options.
    """
    found, version = find_engine(engine), find_engine(engine).capabilities().version
    file = _file(engine, options)
    before = _kept(file)
    if before is not None and not again:
        return before
    say("measuring this machine's limits, once")
    overhead = _call_overhead(engine, found, options)
    rates = _rates(engine, found, options, overhead)
    bandwidth = {size: _bandwidth(engine, options, size, overhead) for size in _SIZES}
    if before is not None:
        rates = {name: max(rate, before.multiply_adds.get(name, 0.0)) for name, rate in rates.items()}
        bandwidth = {size: max(rate, before.bandwidth.get(size, 0.0)) for size, rate in bandwidth.items()}
    limits = Limits(cpu_name(), options.threads, f"{engine} {version}", rates, bandwidth, overhead)
    with contextlib.suppress(OSError):  # a cache that cannot be written costs time, no more
        _keep(file, limits)
    return limits


def raised_limits(engine: str, options: OpenOptions, limits: Limits, nodes: Sequence[NodeTime]) -> Limits:
    """Return limits that no kernel is quicker than, and keep them: what a model reaches the machine can do.

    They are measured with a few operators on a machine that may be busy, so that a model can be somewhat quicker.

    Args:
        engine: that measured both.
        options: as for the model.
        limits: that some kernels are quicker than.
        nodes: the kernels.
    """
    rates, bandwidth = dict(limits.multiply_adds), dict(limits.bandwidth)
    for node in nodes:
        kind = limited_by(node.dtype, limits)
        rates[kind] = max(rates[kind], limits.multiply_adds[kind] * (node.arithmetic or 0.0))
        if node.memory is not None and node.memory > 1.0:
            for size in _around((node.bytes_moved or 0) / max(node.calls, 1.0), sorted(bandwidth)):
                bandwidth[size] = max(bandwidth[size], limits.bandwidth[size] * node.memory)
    raised = dataclasses.replace(limits, multiply_adds=rates, bandwidth=bandwidth)
    file = _file(engine, options)
    if _kept(file) == limits:
        with contextlib.suppress(OSError):
            _keep(file, raised)
    return raised


def _around(moved: float, sizes: Sequence[int]) -> list[int]:
    """Return the sizes between which bytes lie."""
    return list(
        dict.fromkeys([max((s for s in sizes if s <= moved), default=sizes[0]), *[s for s in sizes if s >= moved][:1]])
    )


def _file(engine: str, options: OpenOptions) -> Path:
    version = find_engine(engine).capabilities().version
    about = [_FORM, cpu_name(), engine, version, options.threads, sorted(map(str, options.settings.items()))]
    return cache() / "limits" / f"{hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]}.json"


def _kept(file: Path) -> Limits | None:
    """Return what the cache has; None where it has nothing, or something else."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        return _read(json.loads(file.read_text()))
    return None


def _read(kept: Mapping[str, Any]) -> Limits:
    rates = {str(name): float(rate) for name, rate in kept["multiply_adds"].items()}
    bandwidth = {int(size): float(rate) for size, rate in kept["bandwidth"].items()}
    if not (rates and bandwidth and min(*rates.values(), *bandwidth.values()) > 0):
        raise ValueError
    overhead = float(kept["call_overhead"])
    return Limits(kept["cpu"], kept["threads"], kept["engine"], rates, bandwidth, overhead)


def _keep(file: Path, limits: Limits) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as written:
        json.dump(limits.to_json(), written)
    Path(written.name).replace(file)


def _rates(engine: str, found: Engine, options: OpenOptions, overhead: float) -> dict[str, float]:
    """Return the multiply-adds in a second by dtype, of dtypes that the engine has kernels of."""
    rates: dict[str, float] = {}
    runs = found.capabilities().runs
    for name, model, shape, count in _products():
        if name != "float32" and runs is not None and not runs(model):
            continue
        kind = np.dtype("uint8") if name == "int8" else numpy_dtype(name)
        try:
            seconds = _quickest(engine, options, model, {"x": np.ones(shape, np.float32).astype(kind)}, overhead)
        except TorchportError:
            if name == "float32":
                raise
            continue
        rates[name] = max(count / seconds, rates.get(name, 0.0))
    return rates


def _products() -> Iterator[tuple[str, onnx.ModelProto, list[int], int]]:
    """Give models by dtype, with the shape of the input and the multiply-adds: the quickest of a dtype is its limit.

    Which size is quickest depends on the caches and the number of threads, and some engines convolve quicker than they
    multiply matrices.
    """
    for side in _SIDES:
        shape = [side] * 2
        for name, kind in _FLOATS.items():
            weight = numpy_helper.from_array(np.ones(shape, np.float32).astype(numpy_dtype(name)), "w")
            yield name, _model(helper.make_node("MatMul", ["x", "w"], ["y"]), kind, kind, shape, weight), shape, side**3
        weight = numpy_helper.from_array(np.ones(shape, np.int8), "w")
        node = helper.make_node("MatMulInteger", ["x", "w"], ["y"])
        yield "int8", _model(node, TensorProto.UINT8, TensorProto.INT32, shape, weight), shape, side**3
    channels, side = _IMAGE
    shape = [1, channels, side, side]
    weight = numpy_helper.from_array(np.ones((channels, channels, _KERNEL, _KERNEL), np.float32), "w")
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[_KERNEL // 2] * 4)
    count = channels**2 * _KERNEL**2 * side**2
    yield "float32", _model(node, TensorProto.FLOAT, TensorProto.FLOAT, shape, weight), shape, count


def _model(
    node: onnx.NodeProto, given: int, made: int, shape: list[int], *weights: onnx.TensorProto
) -> onnx.ModelProto:
    infos = [helper.make_tensor_value_info("x", given, shape), helper.make_tensor_value_info("y", made, shape)]
    graph = helper.make_graph([node], "limit", infos[:1], infos[1:], list(weights))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8)


def _bandwidth(engine: str, options: OpenOptions, size: int, overhead: float) -> float:
    """Return the bytes in a second of an operator that reads half of the bytes and writes the other half."""
    shape = [size // 2 // 4 // 1024, 1024]
    model = _model(helper.make_node("Neg", ["x"], ["y"]), TensorProto.FLOAT, TensorProto.FLOAT, shape)
    return size / _quickest(engine, options, model, {"x": np.ones(shape, np.float32)}, overhead)


def _call_overhead(engine: str, found: Engine, options: OpenOptions) -> float:
    """Return the seconds by which the counted time of a call is too long, from a chain of operators on one number."""
    names = [f"t{n}" for n in range(_CHAIN + 1)]
    kinds = ("Sin", "Cos")  # no engine fuses these
    nodes = [helper.make_node(kinds[n % 2], [names[n]], [names[n + 1]]) for n in range(_CHAIN)]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in (names[0], names[-1])]
    graph = helper.make_graph(nodes, "calls", infos[:1], infos[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8)
    feeds = {names[0]: np.ones(1, np.float32)}
    with tempfile.TemporaryDirectory(prefix="torchport-") as folder:
        path = Path(folder) / "calls.onnx"
        onnx.save(model, path)
        counted = _timed(engine, options, path, feeds, runs=50)[0].seconds
        plain = found.open(path, options)
        times = sorted(_seconds(lambda: plain.run(feeds)) for _ in range(100))
    return max(counted - times[25], 0.0) / _CHAIN


def _quickest(
    engine: str, options: OpenOptions, model: onnx.ModelProto, feeds: dict[str, Array], overhead: float
) -> float:
    """Return the seconds of the longest kernel of a model, in the quickest of some measurements.

    What counting adds is taken off as it is from the kernels that are held against the limit.
    """
    start = time.monotonic()
    found: list[float] = []
    with tempfile.TemporaryDirectory(prefix="torchport-") as folder:
        path = Path(folder) / "limit.onnx"
        onnx.save(model, path)
        plain = find_engine(engine).open(path, options)
        while len(found) < _TIMES and (not found or time.monotonic() - start < _SECONDS):
            times, counted = _timed(engine, options, path, feeds)
            alone = _quicker_half([_seconds(lambda: plain.run(feeds)) for _ in range(_RUNS)])
            found.append(_longest_kernel(without_counting(times, overhead, counted, alone)))
    return min(found)


def _timed(
    engine: str, options: OpenOptions, path: Path, feeds: dict[str, Array], runs: int = _RUNS
) -> tuple[KernelTimes, float]:
    """Return the times of the kernels, and the seconds of a run that counts."""
    profiler = open_profiler(engine, path, onnx_files.load(path), options)
    try:
        profiler.run(feeds)
        profiler.warm()
        took = [_seconds(lambda: profiler.run(feeds)) for _ in range(runs)]
        return profiler.times(), _quicker_half(took)
    finally:
        profiler.close()


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _quicker_half(seconds: Sequence[float]) -> float:
    kept = sorted(seconds)[: (len(seconds) + 1) // 2]
    return sum(kept) / len(kept)


def _longest_kernel(times: KernelTimes) -> float:
    return max((kernel.seconds for kernel in times.kernels), default=0.0) or 1e-6
