"""Dynamically quantized recurrent layers.

PyTorch quantizes the input of a layer once, over all steps, and the state at each step by its own extremes. ONNX's LSTM
and GRU cannot, so they go step by step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from torchport.capture.repairs import recurrent_steps
from torchport.capture.repairs.quantized_tensors import Cell, Packed, linear, linear_dynamic


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
    return _run("LSTM", input, tuple(hx), params, bidirectional, batch_first)


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
    return _run("GRU", input, (hx,), params, bidirectional, batch_first)


def _run(
    kind: str,
    input: Tensor,
    states: tuple[Tensor, ...],
    params: Sequence[Cell],
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    cells = [_Quantized(p) for p in params]
    directions = 2 if bidirectional else 1
    return recurrent_steps.run(kind, input, states, cells, directions=directions, batch_first=batch_first)


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
