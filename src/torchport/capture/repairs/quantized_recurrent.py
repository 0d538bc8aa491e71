"""Dynamically quantized recurrent layers.

PyTorch quantizes the input of a layer once, over all steps, and the state at each step by its own extremes. ONNX's LSTM
and GRU cannot, so they go step by step. The cells (nn.LSTMCell and its kin) are one such step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchport.capture.repairs import recurrent_steps
from torchport.capture.repairs.quantized_dynamic import linear, linear_dynamic
from torchport.capture.repairs.quantized_tensors import Cell, Packed
from torchport.capture.repairs.recurrent import BatchSizes


def quantized_lstm(input: Tensor, *given: Any, **_: Any) -> tuple[Tensor, ...]:
    """In the place of torch.quantized_lstm, of a padded tensor or of packed rows with their batch sizes."""
    if isinstance(given[0], BatchSizes):
        sizes, hx, *options = given
        return _packed("LSTM", input, sizes, tuple(hx), options)
    hx, *options = given
    return _run("LSTM", input, tuple(hx), options)


def quantized_gru(input: Tensor, *given: Any, **_: Any) -> tuple[Tensor, ...]:
    """The same in the place of torch.quantized_gru, which has one state."""
    if isinstance(given[0], BatchSizes):
        sizes, hx, *options = given
        return _packed("GRU", input, sizes, (hx,), options)
    hx, *options = given
    return _run("GRU", input, (hx,), options)


def _packed(
    kind: str, rows: Tensor, sizes: BatchSizes, states: tuple[Tensor, ...], options: Sequence[Any]
) -> tuple[Tensor, ...]:
    real = sizes.real()
    padded = torch.where(real.unsqueeze(-1), sizes.pad(rows), 0.0)  # padding must not be the largest number
    padded, *last = _run(kind, padded, states, [*options, False], sizes.lengths)
    return sizes.remember(padded[real], padded), *last


def _run(
    kind: str, input: Tensor, states: tuple[Tensor, ...], options: Sequence[Any], lengths: Tensor | None = None
) -> tuple[Tensor, ...]:
    params, _, num_layers, dropout, train, bidirectional, batch_first = options
    if train and dropout and num_layers > 1:
        raise NotImplementedError("dropout between recurrent layers in train mode draws random numbers")
    cells, directions = [_Quantized(p) for p in params], 2 if bidirectional else 1
    return recurrent_steps.run(
        kind, input, states, cells, directions=directions, batch_first=batch_first, lengths=lengths
    )


def _cell(kind: str) -> Callable[..., Any]:
    """In the place of torch.ops.quantized.quantized_lstm_cell_dynamic and its kin.

    They always quantize into the reduced range. The biases they are given besides are not used: the packed ones are.
    """

    def apply(input: Tensor, hx: Any, w_ih: Packed, w_hh: Packed, *biases: Any) -> Any:
        own = _Quantized(Cell(w_ih, w_hh, reduce_range=True))
        states = tuple(hx) if kind == "LSTM" else (hx,)
        new = recurrent_steps.STEPS[kind](own, own.of_input(input), states)
        return new if kind == "LSTM" else new[0]

    return apply


CELLS = {f"quantized_{name}_cell_dynamic": _cell(name.upper()) for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")}


class _Quantized:
    """A cell whose weights are quantized."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell

    def of_input(self, x: Tensor) -> Tensor:
        return self._apply(self._cell.input, x)

    def of_hidden(self, h: Tensor) -> Tensor:
        return self._apply(self._cell.hidden, h)

    def projected(self, h: Tensor) -> Tensor:
        return h

    def traced(self) -> _Quantized:
        return _Quantized(Cell(self._cell.input, self._cell.hidden.traced(), self._cell.reduce_range))

    def _apply(self, packed: Packed, x: Tensor) -> Tensor:
        if isinstance(packed.weight, Tensor):  # of 16 bits
            return linear(x, packed)
        return linear_dynamic(x, packed, self._cell.reduce_range)
