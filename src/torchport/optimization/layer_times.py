"""The time of each layer in the float and in the quantized model, and the layers that are slower in int8.

A kernel that computes several layers is shared out evenly. What an engine inserts to quantize a tensor counts for the
layers that take the tensor.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import onnx_ir as ir

from torchport.engines.profiling import KernelTimes, check_profiles, open_profiler
from torchport.engines.protocol import OpenOptions
from torchport.errors import TorchportError
from torchport.files import onnx_files
from torchport.optimization.preparation import DEQUANTIZE, QUANTIZE
from torchport.tensors import Array

_RUNS = (5, 100)  # of the profile of a model, at least and at most
_SLOWER = 1.05  # a layer is slower that takes so much more
_WORTH = 0.01  # of a run: what leaving a layer in float has to save
_CONVERTING = (QUANTIZE, DEQUANTIZE)


def layer_times(
    engine: str, path: Path, options: OpenOptions, feeds: Mapping[str, Array], layers: Collection[str], seconds: float
) -> dict[str, float]:
    """Return the seconds of each layer in a run, by name; nothing where the engine does not count them.

    Args:
        engine: what runs the model.
        path: its file.
        options: for the engine.
        feeds: the inputs.
        layers: the names of nodes.
        seconds: to measure for.
    """
    try:
        check_profiles(engine)
        model = onnx_files.load(path)
        profiler = open_profiler(engine, path, model, options)
    except TorchportError:  # it runs without counters, which is what decides in the end
        return {}
    try:
        profiler.run(feeds)
        profiler.warm()
        end = time.monotonic() + seconds
        for runs in range(_RUNS[1]):
            if runs >= _RUNS[0] and time.monotonic() > end:
                break
            profiler.run(feeds)
        return _shared(profiler.times(), set(layers))
    finally:
        profiler.close()


def _shared(times: KernelTimes, layers: Collection[str]) -> dict[str, float]:
    found: dict[str, float] = dict.fromkeys(layers, 0.0)
    for kernel in times.kernels:
        nodes = kernel.nodes or kernel.beside
        names = {str(n.name) for n in nodes} & set(layers)
        if not names:
            names = {str(n.name) for node in nodes for n in _takers(node)} & set(layers)
        for name in names:
            found[name] += kernel.seconds / len(names)
    return found


def _takers(node: ir.Node) -> Iterator[ir.Node]:
    """Give the nodes that take what a conversion gives."""
    if node.op_type not in _CONVERTING:
        return
    for taker in (user for value in node.outputs for user in value.consumers()):
        if taker.op_type in _CONVERTING:
            yield from _takers(taker)
        else:
            yield taker


def slower_layers(before: Mapping[str, float], after: Mapping[str, float], run_seconds: float) -> tuple[str, ...]:
    """Return the layers that take longer than in the float model, those that lose most first.

    Args:
        before: the times of layers in the float model.
        after: in the quantized one.
        run_seconds: of a run of the quantized model.
    """
    lost = {name: after[name] - before[name] for name in after if name in before}
    found = [n for n, more in lost.items() if after[n] > _SLOWER * before[n] and more > _WORTH * run_seconds]
    return tuple(sorted(found, key=lambda name: -lost[name]))
