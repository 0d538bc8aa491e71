"""torchport::lstm, torchport::rnn, aten::lstm.input, aten::gru.input, aten::rnn_tanh.input, aten::rnn_relu.input

One ONNX LSTM, GRU or RNN a layer, both directions in it, with batch and sequence free. torch.export cannot keep
`aten::lstm` with a free sequence: it counts the steps while it looks at the shapes. So the capture puts the two
operators below in its place (capture/repairs/recurrent.py), which also take the lengths of packed sequences.

    PyTorch's gates   LSTM i f g o    GRU r z n
    ONNX's gates      LSTM i o f c    GRU z r h     and linear_before_reset = 1

ONNX's LSTM knows no projection, h = W_hr · (o · tanh(c)). Its own h stays the one before the projection:

    W_hh · h = (W_hh · W_hr) · (o · tanh(c))     R is the product, the output is projected after the node

The projected first state reaches the gates as further features of the first step, with W_hh as their weights.

Source of truth: ATen's native/RNN.cpp.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch
from onnxscript import opset18

from torchport.operators.registration import translates

op: Any = opset18  # its annotations know eager tensors only, not a graph's values

_GATES = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN_TANH": (0,), "RNN_RELU": (0,)}  # PyTorch's place of ONNX's

_library = torch.library.Library("torchport", "FRAGMENT")
_ARGUMENTS = "Tensor[] params, bool has_biases, int num_layers, bool bidirectional, bool batch_first"
_library.define(f"lstm(Tensor input, Tensor? lengths, Tensor h, Tensor c, {_ARGUMENTS}) -> (Tensor, Tensor, Tensor)")
_library.define(f"rnn(str kind, Tensor input, Tensor? lengths, Tensor h, {_ARGUMENTS}) -> (Tensor, Tensor)")


@torch.library.register_fake("torchport::lstm", lib=_library)
def _lstm_shapes(input: Any, lengths: Any, h: Any, c: Any, *options: Any) -> tuple[Any, Any, Any]:
    return _output_shape(input, h, options), torch.empty_like(h), torch.empty_like(c)


@torch.library.register_fake("torchport::rnn", lib=_library)
def _rnn_shapes(kind: str, input: Any, lengths: Any, h: Any, *options: Any) -> tuple[Any, Any]:
    return _output_shape(input, h, options), torch.empty_like(h)


def _output_shape(input: Any, h: Any, options: Sequence[Any]) -> Any:
    bidirectional = options[3]
    return input.new_empty((*input.shape[:2], h.shape[-1] * (2 if bidirectional else 1)))


@dataclasses.dataclass(frozen=True)
class _Layers:
    """What all layers share."""

    kind: str
    params: Sequence[Any]
    has_biases: bool
    bidirectional: bool
    lengths: Any  # int32, or None
    projected: bool

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1

    def weights(self, layer: int, direction: int) -> list[Any]:
        """W_ih, W_hh, biases and the projection, as PyTorch keeps them."""
        count = 2 + 2 * self.has_biases + self.projected
        start = (layer * self.directions + direction) * count
        return list(self.params[start : start + count])

    def gates(self, weight: Any) -> Any:
        """A weight or a bias with its gates in ONNX's order."""
        order = _GATES[self.kind]
        if len(order) == 1:
            return weight
        parts = op.Split(weight, num_outputs=len(order), axis=0)
        return op.Concat(*(parts[place] for place in order), axis=0)


@translates("torchport::lstm.default")
def lstm(
    input: Any,
    lengths: Any,
    h: Any,
    c: Any,
    params: Sequence[Any],
    has_biases: bool,
    num_layers: int,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    """Translate torchport::lstm: output, last hidden and last cell states."""
    count = len(params) // (num_layers * (2 if bidirectional else 1))
    projected = count == 3 + 2 * has_biases
    layers = _Layers("LSTM", params, has_biases, bidirectional, _int32(lengths), projected)
    output, states = _run(layers, input, (h, c), num_layers, batch_first)
    return output, *states


@translates("torchport::rnn.default")
def rnn(
    kind: str,
    input: Any,
    lengths: Any,
    h: Any,
    params: Sequence[Any],
    has_biases: bool,
    num_layers: int,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    """Translate torchport::rnn, `kind` being GRU, RNN_TANH or RNN_RELU."""
    layers = _Layers(kind, params, has_biases, bidirectional, _int32(lengths), projected=False)
    output, states = _run(layers, input, (h,), num_layers, batch_first)
    return output, *states


@translates("aten::lstm.input")
def aten_lstm(
    input: Any,
    hx: Sequence[Any],
    params: Sequence[Any],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    """Translate aten::lstm.input of a program that someone else captured."""
    _check_no_dropout(dropout, train, num_layers)
    return lstm(input, None, hx[0], hx[1], params, has_biases, num_layers, bidirectional, batch_first)


def aten_rnn(kind: str) -> Any:
    """The translation of aten::gru.input and its kin."""

    def translate(
        input: Any,
        hx: Any,
        params: Sequence[Any],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        _check_no_dropout(dropout, train, num_layers)
        return rnn(kind, input, None, hx, params, has_biases, num_layers, bidirectional, batch_first)

    return translate


def _check_no_dropout(dropout: float, train: bool, num_layers: int) -> None:
    if train and dropout and num_layers > 1:
        raise ValueError("dropout between recurrent layers in train mode draws random numbers")


def _int32(lengths: Any) -> Any:
    return None if lengths is None else op.Cast(lengths, to=ir.DataType.INT32)


def _run(
    layers: _Layers, value: Any, states: tuple[Any, ...], num_layers: int, batch_first: bool
) -> tuple[Any, list[Any]]:
    """All layers, each fed the one before; the last states of all, in PyTorch's order."""
    if batch_first:
        value = op.Transpose(value, perm=[1, 0, 2])
    last: list[list[Any]] = [[] for _ in states]
    for layer in range(num_layers):
        first = [_part(s, layer, layers.directions, num_layers) for s in states]
        value, ended = (_projected_layer if layers.projected else _layer)(layers, layer, value, first)
        for found, state in zip(last, ended, strict=True):
            found.append(state)
    if batch_first:
        value = op.Transpose(value, perm=[1, 0, 2])
    return value, [s[0] if len(s) == 1 else op.Concat(*s, axis=0) for s in last]


def _part(state: Any, layer: int, directions: int, num_layers: int) -> Any:
    """A layer's own of the first states of all."""
    if num_layers == 1:
        return state
    return _rows(state, layer * directions, (layer + 1) * directions)


def _rows(value: Any, start: int, end: int) -> Any:
    return op.Slice(value, *(op.Constant(value_ints=[n]) for n in (start, end, 0)))


def _layer(layers: _Layers, layer: int, value: Any, first: list[Any]) -> tuple[Any, list[Any]]:
    """One layer, both directions in one node."""
    weights = [layers.weights(layer, d) for d in range(layers.directions)]
    w, r = (_stack([layers.gates(own[place]) for own in weights]) for place in (0, 1))
    b = None
    if layers.has_biases:
        b = _stack([op.Concat(layers.gates(own[2]), layers.gates(own[3]), axis=0) for own in weights])
    y, *last = _node(layers, [value, w, r, b, layers.lengths, *first], "bidirectional" if layers.bidirectional else "")
    if not layers.bidirectional:
        return op.Squeeze(y, op.Constant(value_ints=[1])), last
    # sequence, direction, batch, hidden: the directions' features come side by side
    return op.Reshape(op.Transpose(y, perm=[0, 2, 1, 3]), op.Constant(value_ints=[0, 0, -1])), last


def _projected_layer(layers: _Layers, layer: int, value: Any, first: list[Any]) -> tuple[Any, list[Any]]:
    """One layer with a projection: a node a direction, as each takes its first state as features of its own."""
    outputs, hidden, cells = [], [], []
    for direction in range(layers.directions):
        h, c = (_rows(s, direction, direction + 1) if layers.bidirectional else s for s in first)
        w_ih, w_hh, *biases, projection = layers.weights(layer, direction)
        fed = op.Concat(value, _at_first_step(value, h, layers.lengths, reverse=direction == 1), axis=2)
        w = _stack([layers.gates(op.Concat(w_ih, w_hh, axis=1))])
        r = _stack([layers.gates(op.MatMul(w_hh, projection))])
        b = _stack([op.Concat(*(layers.gates(x) for x in biases), axis=0)]) if biases else None
        nothing = op.Mul(c, _zero(c))  # the state before the projection is not known; the features stand for it
        y, y_h, y_c = _node(layers, [fed, w, r, b, layers.lengths, nothing, c], "reverse" if direction else "")
        turned = op.Transpose(projection, perm=[1, 0])
        outputs.append(op.MatMul(op.Squeeze(y, op.Constant(value_ints=[1])), turned))
        hidden.append(op.MatMul(y_h, turned))
        cells.append(y_c)
    join = [(parts[0] if len(parts) == 1 else op.Concat(*parts, axis=a)) for parts, a in ((hidden, 0), (cells, 0))]
    return outputs[0] if len(outputs) == 1 else op.Concat(*outputs, axis=2), join


def _at_first_step(value: Any, h: Any, lengths: Any, *, reverse: bool) -> Any:
    """`h` at the step a direction begins with, zeros at all others: sequence, batch, features."""
    steps = op.Squeeze(op.Shape(value, start=0, end=1))
    zero, one = op.Constant(value_int=0), op.Constant(value_int=1)
    if not reverse:
        begin = zero
    elif lengths is None:
        begin = op.Sub(steps, one)
    else:  # batch, and one feature to spread over
        begin = op.Sub(op.Unsqueeze(op.Cast(lengths, to=ir.DataType.INT64), op.Constant(value_ints=[1])), one)
    step = op.Unsqueeze(op.Range(zero, steps, one), op.Constant(value_ints=[1, 2]))
    return op.Where(op.Equal(step, begin), h, _zero(h))


def _zero(like: Any) -> Any:
    return op.CastLike(op.Constant(value_float=0.0), like)


def _stack(parts: list[Any]) -> Any:
    """One weight a direction, along a new first axis."""
    apart = [op.Unsqueeze(p, op.Constant(value_ints=[0])) for p in parts]
    return apart[0] if len(apart) == 1 else op.Concat(*apart, axis=0)


def _node(layers: _Layers, inputs: list[Any], direction: str) -> Any:
    """The ONNX node. Its hidden size comes from the recurrent weights, whose last axis it is."""
    options: dict[str, Any] = {"direction": direction} if direction else {}
    hidden = layers.params[-1].shape[-1] if layers.projected else layers.params[1].shape[-1]
    if layers.kind == "LSTM":
        return op.LSTM(*inputs, hidden_size=hidden, **options)
    if layers.kind == "GRU":
        return op.GRU(*inputs, hidden_size=hidden, linear_before_reset=1, **options)
    if layers.kind == "RNN_RELU":
        options["activations"] = ["Relu"] * layers.directions
    return op.RNN(*inputs, hidden_size=hidden, **options)


translates("aten::gru.input")(aten_rnn("GRU"))
translates("aten::rnn_tanh.input")(aten_rnn("RNN_TANH"))
translates("aten::rnn_relu.input")(aten_rnn("RNN_RELU"))
