"""Find the fewest layers to leave in float, so that a quantized model is within the limits.

    rank    each layer quantized alone; the noise in the outputs says how much it hurts
    search  the k layers that hurt most are left in float; the smallest k within the limits, by bisection

Noise of several layers adds up nearly, so that the ranking of single layers holds for all together.
"""

from __future__ import annotations

import abc
import dataclasses
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

import onnx_ir as ir

from torchport.editing.cleanup import remove_unused
from torchport.errors import TorchportError
from torchport.files import onnx_files
from torchport.irtools.names import own_tensor
from torchport.optimization.accuracy import Accuracy
from torchport.optimization.preparation import DEQUANTIZE, QUANTIZE

# Operators that compute nothing: they are quantized so that their neighbors need no conversion between.
_MOVING = frozenset(
    (
        *("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Slice", "Split", "Concat", "Gather", "Flatten", "Identity"),
        *("Expand", "MaxPool", "Resize", "Pad", "DepthToSpace", "SpaceToDepth", "Tile", "Where"),
    )
)

_CLIPPING = ("Relu", "Clip")


class QuantizedModel(abc.ABC):
    """A quantized model of which layers can be put back to float."""

    layers: tuple[str, ...]

    @abc.abstractmethod
    def without(self, names: Collection[str]) -> Path:
        """Return the file of the model in which these layers are in float."""


class QdqModel(QuantizedModel):
    """A model with QuantizeLinear and DequantizeLinear around its layers.

    Args:
        quantized: its file.
        original: the float model; layers have the same names in both.
        folder: for the files it makes.
    """

    def __init__(self, quantized: Path, original: ir.Model, folder: Path) -> None:
        self._path, self._folder = quantized, folder
        self._original = {str(n.name): n for n in original.graph}
        self._makers = {str(v.name): n for n in original.graph for v in n.outputs}
        found = [n for n in onnx_files.load(quantized).graph if _is_layer(n) and str(n.name) in self._original]
        self.layers = tuple(str(n.name) for n in found)
        self._count = 0

    def without(self, names: Collection[str]) -> Path:
        if not names:
            return self._path
        model = onnx_files.load(self._path)
        wanted = set(names)
        for node in list(model.graph):
            if str(node.name) in wanted:
                self._put_back(model, node)
        for node in reversed([n for n in model.graph if n.op_type in _MOVING and _takes_quantized(n)]):
            self._put_back_mover(model, node)
        _merge_idle_pairs(model)
        remove_unused(model)
        self._count += 1
        return onnx_files.save(model, self._folder / f"mixed{self._count}.onnx", check=False)

    def _put_back_mover(self, model: ir.Model, node: ir.Node) -> None:
        """Let an operator that only moves data take what it took, where nothing behind it is quantized any more."""
        if any(_takes_quantized(u) for v in node.outputs for u in _behind_pairs(v)):
            return
        for index, value in enumerate(node.inputs):
            maker = value.producer() if value is not None else None
            before = _before_pair(maker) if maker is not None and maker.op_type == DEQUANTIZE else None
            if before is not None:
                node.replace_input_with(index, self._clipped(model, before))

    def _put_back(self, model: ir.Model, node: ir.Node) -> None:
        """Let a node take what was quantized for it before it was; weights are the float model's own."""
        own = self._original[str(node.name)]
        for index, value in enumerate(node.inputs):
            maker = value.producer() if value is not None else None
            if maker is None or maker.op_type != DEQUANTIZE:
                continue
            before = _before_pair(maker)
            weight = own.inputs[index] if index < len(own.inputs) else None
            if before is not None:
                node.replace_input_with(index, self._clipped(model, before))
            elif weight is not None and weight.const_value is not None:
                node.replace_input_with(index, _initializer(model, weight))

    def _clipped(self, model: ir.Model, value: ir.Value) -> ir.Value:
        """Return a tensor as the float model has it: ONNX Runtime leaves out a Relu that quantization does by itself.

        What came before the Relu then has the name of its result.
        """
        own, maker = self._makers.get(str(value.name)), value.producer()
        if own is None or maker is None or own.op_type not in _CLIPPING or maker.op_type == own.op_type:
            return value
        name = f"{value.name}_clipped"
        made = next((v for n in value.consumers() for v in n.outputs if v.name == name), None)
        if made is not None:
            return made
        limits = [None if v is None else _initializer(model, v) for v in own.inputs[1:]]
        node = ir.Node("", own.op_type, [value, *limits], own.attributes.values(), name=own.name)
        node.outputs[0].name, node.outputs[0].type = name, value.type
        model.graph.insert_after(maker, node)
        return node.outputs[0]


def _is_layer(node: ir.Node) -> bool:
    """Check that a node computes with what was quantized."""
    return node.op_type not in (QUANTIZE, DEQUANTIZE, *_MOVING) and _takes_quantized(node)


def _takes_quantized(node: ir.Node) -> bool:
    makers = [v.producer() for v in node.inputs if v is not None]
    return any(m is not None and m.op_type == DEQUANTIZE for m in makers)


def _before_pair(dequantize: ir.Node) -> ir.Value | None:
    """Return the tensor that was quantized; None for one that is stored quantized."""
    quantized = dequantize.inputs[0]
    maker = quantized.producer() if quantized is not None else None
    return maker.inputs[0] if maker is not None and maker.op_type == QUANTIZE else None


def _initializer(model: ir.Model, weight: ir.Value) -> ir.Value:
    """Return the float model's weight, under a name of its own: a quantizer gives its name to what it dequantizes."""
    name = f"{weight.name}_float"
    known = model.graph.initializers.get(name)
    if known is not None:
        return known
    constant = ir.convenience.get_const_tensor(weight)
    assert constant is not None
    tensor = own_tensor(constant, name)
    made = ir.Value(
        name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()), const_value=tensor
    )
    model.graph.register_initializer(made)
    return made


def _behind_pairs(value: ir.Value) -> Iterator[ir.Node]:
    """Give the nodes that take a tensor after it was quantized."""
    for taker in value.consumers():
        if taker.op_type in (QUANTIZE, DEQUANTIZE):
            yield from _behind_pairs(taker.outputs[0])
        else:
            yield taker


def _merge_idle_pairs(model: ir.Model) -> None:
    """Let outputs of the model that are quantized for nobody be what they were before."""
    for n, value in enumerate(model.graph.outputs):
        maker = value.producer()
        before = _before_pair(maker) if maker is not None and maker.op_type == DEQUANTIZE else None
        source = before.producer() if before is not None else None
        if before is None or source is None or _takes_quantized(source) or before.is_graph_output():
            continue
        name = value.name
        value.name = f"{name}_dequantized"
        before.name = name
        model.graph.outputs[n] = before


# Ranking and search


@dataclasses.dataclass(frozen=True)
class Found:
    """What the search gave.

    Attributes:
        path: the model; None where nothing quantized is within the limits.
        layers: that can be quantized, in the model's order.
        left: the layers in float, those that hurt most first.
        noise: of each layer that was quantized alone, as a part of the signal; empty if nobody had to ask.
        accuracy: of the model; of the fully quantized one if there is none.
        tries: models that were held against the float one.
    """

    path: Path | None
    layers: tuple[str, ...]
    left: tuple[str, ...]
    noise: Mapping[str, float]
    accuracy: Accuracy
    tries: int


Measure = Callable[[Path], Accuracy]


def rank(
    model: QuantizedModel, noise_of: Callable[[Path], float], *, seconds: float, say: Callable[[str], None]
) -> dict[str, float]:
    """Return the noise of each layer quantized alone, the largest first; as many as there is time for."""
    found: dict[str, float] = {}
    end = time.monotonic() + seconds
    for n, name in enumerate(model.layers):
        if time.monotonic() > end:
            break
        say(f"ranking layers, {n + 1} of {len(model.layers)}")
        others = [other for other in model.layers if other != name]
        try:
            found[name] = noise_of(model.without(others))
        except TorchportError:  # the engine refuses this mix: the layer is not worth a try
            found[name] = math.inf
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def fewest_in_float(
    model: QuantizedModel,
    measure: Measure,
    noise_of: Callable[[Path], float],
    *,
    seconds: float,
    say: Callable[[str], None],
    whole: Accuracy | None = None,
) -> Found:
    """Leave the fewest layers in float with which a model is within the limits.

    Args:
        model: the quantized model.
        measure: holds a model against the float one.
        noise_of: returns the noise of a model on a few samples.
        seconds: for the ranking.
        say: called with one line at each step.
        whole: the accuracy of the model with all layers quantized, if it is known.
    """
    whole = measure(model.without(())) if whole is None else whole
    if whole.ok:
        return Found(model.without(()), model.layers, (), {}, whole, 1)
    noise = rank(model, noise_of, seconds=seconds, say=say)
    order = [*noise, *(name for name in model.layers if name not in noise)]
    best: tuple[Path, tuple[str, ...], Accuracy] | None = None
    low, high, tries = 1, len(order) - 1, 1
    while low <= high:
        middle = (low + high) // 2 if best is not None or tries > 3 else min(high, 2 ** (tries - 1))
        say(f"leaving {middle} of {len(order)} layers in float")
        path = model.without(order[:middle])
        found = measure(path)
        tries += 1
        if found.ok:
            best, high = (path, tuple(order[:middle]), found), middle - 1
        else:
            low = middle + 1
    if best is None:
        return Found(None, model.layers, (), noise, whole, tries)
    return Found(best[0], model.layers, best[1], noise, best[2], tries)
