"""Recurrent layers step by step, where ONNX's own nodes will not do: the steps become a Scan.

    LSTM   i, f, g, o = W·x + R·h      c' = σ(f)·c + σ(i)·tanh(g)     h' = P·(σ(o)·tanh(c'))
    GRU    r, z, n of each             n' = tanh(n_x + σ(r)·n_h)      h' = (h - n')·σ(z) + n'
    RNN    h' = tanh(W·x + R·h), or relu

A direction of a layer is a `Cell`, which knows how to make the gates of what it is given. Beyond a row's own length the
state stays as it is, and the output is zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

States = tuple[Tensor, ...]


class Cell(Protocol):
    """One direction of one layer."""

    def of_input(self, x: Tensor) -> Tensor:
        """The gates' share of the input, of all steps at once."""

    def of_hidden(self, h: Tensor) -> Tensor:
        """The gates' share of the hidden state."""

    def projected(self, h: Tensor) -> Tensor:
        """The new hidden state, brought to its own size."""

    def traced(self) -> Cell:
        """The same with its weights as values of the graph: the body of a loop takes nothing else from outside."""


Step = Callable[[Cell, Tensor, States], States]


def lstm(cell: Cell, x: Tensor, states: States) -> States:
    h, c = states
    i, f, g, o = (x + cell.of_hidden(h)).chunk(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return cell.projected(torch.sigmoid(o) * torch.tanh(c)), c


def gru(cell: Cell, x: Tensor, states: States) -> States:
    (h,) = states
    (r_x, z_x, n_x), (r_h, z_h, n_h) = x.chunk(3, -1), cell.of_hidden(h).chunk(3, -1)
    new = torch.tanh(n_x + torch.sigmoid(r_x + r_h) * n_h)
    return ((h - new) * torch.sigmoid(z_x + z_h) + new,)


def rnn_tanh(cell: Cell, x: Tensor, states: States) -> States:
    return (torch.tanh(x + cell.of_hidden(states[0])),)


def rnn_relu(cell: Cell, x: Tensor, states: States) -> States:
    return (torch.relu(x + cell.of_hidden(states[0])),)


STEPS: dict[str, Step] = {"LSTM": lstm, "GRU": gru, "RNN_TANH": rnn_tanh, "RNN_RELU": rnn_relu}


def run(
    kind: str,
    value: Tensor,
    states: States,
    cells: Sequence[Cell],
    *,
    directions: int,
    batch_first: bool,
    lengths: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """All layers, each fed the one before: the output, and the last states of all in PyTorch's order.

    Args:
        kind: a name of `STEPS`.
        value: the input, padded.
        states: the first states of all layers and directions: hidden, and cell of an LSTM.
        cells: layer by layer, its directions side by side.
        directions: one or two.
        batch_first: whether the batch is the first axis, else the steps are.
        lengths: how many steps of each row count.
    """
    value = value.transpose(0, 1) if batch_first else value
    real = None if lengths is None else (lengths > torch.arange(value.shape[0]).unsqueeze(1)).unsqueeze(-1)
    last: list[States] = []
    for layer in range(len(cells) // directions):
        outputs = []
        for direction in range(directions):
            place = layer * directions + direction
            first = tuple(s[place].clone() for s in states)  # hidden and cell may be the same zeros; a loop wants two
            output, ended = _direction(STEPS[kind], cells[place], value, first, real, direction == 1)
            outputs.append(output)
            last.append(ended)
        value = torch.cat(outputs, -1) if directions == 2 else outputs[0]
    value = value.transpose(0, 1) if batch_first else value
    return value, *(torch.stack(s) for s in zip(*last, strict=True))


def _direction(
    step: Step, cell: Cell, value: Tensor, states: States, real: Tensor | None, reverse: bool
) -> tuple[Tensor, States]:
    from torch._higher_order_ops.scan import scan  # only where such a layer is

    given = [cell.of_input(value)] if real is None else [cell.of_input(value), real]
    cell = cell.traced()

    def one(carried: States, now: list[Tensor]) -> tuple[States, Tensor]:
        if len(now) == 1:
            new = step(cell, now[0], carried)
            return new, new[0].clone()
        # rows at their end are zeros: what quantizes all rows by the largest must not see them
        new = step(cell, now[0], tuple(torch.where(now[1], s, 0.0) for s in carried))
        kept = tuple(torch.where(now[1], n, old) for n, old in zip(new, carried, strict=True))
        return kept, new[0] * now[1]

    ended, outputs = scan(one, states, [g.flip(0) for g in given] if reverse else given)
    return outputs.flip(0) if reverse else outputs, tuple(ended)


class Weights:
    """A cell of plain weights."""

    def __init__(self, w_ih: Tensor, w_hh: Tensor, biases: Sequence[Tensor], projection: Tensor | None) -> None:
        self._w_ih = w_ih
        self._w_hh = w_hh
        self._biases = biases
        self._projection = projection

    def of_input(self, x: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, self._w_ih, self._biases[0] if self._biases else None)

    def of_hidden(self, h: Tensor) -> Tensor:
        return torch.nn.functional.linear(h, self._w_hh, self._biases[1] if self._biases else None)

    def projected(self, h: Tensor) -> Tensor:
        return h if self._projection is None else torch.nn.functional.linear(h, self._projection)

    def traced(self) -> Weights:
        projection = None if self._projection is None else self._projection.clone()
        return Weights(self._w_ih, self._w_hh.clone(), [b.clone() for b in self._biases], projection)


def cells(params: Sequence[Any], has_biases: bool, count: int) -> list[Weights]:
    """The weights of all directions of all layers, as PyTorch lists them, apart."""
    own = len(params) // count
    apart = [params[start : start + own] for start in range(0, len(params), own)]
    biases = 2 if has_biases else 0
    return [Weights(p[0], p[1], p[2 : 2 + biases], p[2 + biases] if own > 2 + biases else None) for p in apart]
