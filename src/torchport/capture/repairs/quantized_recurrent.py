"""Dynamically quantized recurrent layers, step by step.

PyTorch quantizes the input of a layer once, over all steps, and the state at each step by its own extremes. ONNX's LSTM
and GRU cannot: the steps become a Scan.

    LSTM   i, f, g, o = W·x + R·h      c' = σ(f)·c + σ(i)·tanh(g)     h' = σ(o)·tanh(c')
    GRU    r, z, n of each             n' = tanh(n_x + σ(r)·n_h)      h' = (h - n')·σ(z) + n'
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchport.capture.repairs.quantized_tensors import Cell, Packed, linear, linear_dynamic

Step = Callable[[Cell, Tensor, tuple[Tensor, ...]], tuple[Tensor, ...]]


def quantized_lstm(
    input: Tensor,
    hx: Sequence[Tensor],
    params: Sequence[Cell],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    **_: Any,
) -> tuple[Tensor, ...]:
    """In the place of torch.quantized_lstm."""
    return _layers(_lstm_step, input, tuple(hx), params, 2 if bidirectional else 1, batch_first)


def quantized_gru(
    input: Tensor,
    hx: Tensor,
    params: Sequence[Cell],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    **_: Any,
) -> tuple[Tensor, ...]:
    """In the place of torch.quantized_gru."""
    return _layers(_gru_step, input, (hx,), params, 2 if bidirectional else 1, batch_first)


def _layers(
    step: Step,
    value: Tensor,
    states: tuple[Tensor, ...],
    cells: Sequence[Cell],
    directions: int,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    value = value.transpose(0, 1) if batch_first else value
    last: list[tuple[Tensor, ...]] = []
    for layer in range(len(cells) // directions):
        outputs = []
        for direction in range(directions):
            place = layer * directions + direction
            first = tuple(s[place].clone() for s in states)  # hidden and cell may be the same zeros; a loop wants two
            output, ended = _direction(step, cells[place], value, first, direction == 1)
            outputs.append(output)
            last.append(ended)
        value = torch.cat(outputs, -1) if directions == 2 else outputs[0]
    value = value.transpose(0, 1) if batch_first else value
    return value, *(torch.stack(s) for s in zip(*last, strict=True))


def _direction(
    step: Step, cell: Cell, value: Tensor, states: tuple[Tensor, ...], reverse: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    from torch._higher_order_ops.scan import scan  # only where such a layer is

    gates = _apply(cell, cell.input, value)
    cell = Cell(cell.input, cell.hidden.traced(), cell.reduce_range)

    def one(carried: tuple[Tensor, ...], x: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        new = step(cell, x, carried)
        return new, new[0].clone()

    ended, outputs = scan(one, states, gates.flip(0) if reverse else gates)
    return outputs.flip(0) if reverse else outputs, tuple(ended)


def _apply(cell: Cell, packed: Packed, x: Tensor) -> Tensor:
    if isinstance(packed.weight, Tensor):  # of 16 bits
        return linear(x, packed)
    return linear_dynamic(x, packed, cell.reduce_range)


def _lstm_step(cell: Cell, x: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    h, c = states
    i, f, g, o = (x + _apply(cell, cell.hidden, h)).chunk(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def _gru_step(cell: Cell, x: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    (h,) = states
    (r_x, z_x, n_x), (r_h, z_h, n_h) = x.chunk(3, -1), _apply(cell, cell.hidden, h).chunk(3, -1)
    new = torch.tanh(n_x + torch.sigmoid(r_x + r_h) * n_h)
    return ((h - new) * torch.sigmoid(z_x + z_h) + new,)
