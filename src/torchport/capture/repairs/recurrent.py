"""nn.LSTM, nn.GRU and nn.RNN with a dynamic sequence length, packed sequences, and single steps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from torchport.capture.repairs.repair import capture_repair
from torchport.operators import library
from torchport.torch_compat.parts import part, patched
from torchport.torch_compat.shape_env import check

# nn.LSTM, nn.GRU and nn.RNN with a free sequence, and packed sequences.
#
# torch.export looks into `aten::lstm` step by step, which fixes the number of steps; and packing makes tensors whose
# sizes hang on values. During a capture the modules call these functions instead:
#
# - a layer becomes torchport::lstm or torchport::rnn, which become ONNX nodes (operators/library/recurrent.py); in
#   float64, for which ONNX Runtime has no kernels of them, it goes step by step (recurrent_steps.py);
# - a packed sequence remembers the padded tensor it came from. The node is given that and the lengths, and unpacking
#   gives its padded answer back, so that neither packing nor unpacking is left in the graph. Where someone changes the
#   packed rows themselves, they are padded again by their place:
#
#       batch_sizes[t] = how many lengths are above t        row of (t, b) = sum of batch_sizes before t, plus b
#
# Source of truth: torch/nn/modules/rnn.py, torch/nn/utils/rnn.py, and ATen's native/PackedSequence.cpp.


@capture_repair("recurrent layers as operators of their own")
@contextlib.contextmanager
def recurrent(target: Any) -> Iterator[bool]:
    """Put the functions in the place of torch's own, in the two modules that call them."""
    present = isinstance(target, nn.Module) and any(isinstance(m, nn.RNNBase) for m in target.modules())
    if present:
        library.file("recurrent")  # it registers the operators
    own = nn.RNNBase.check_forward_args
    with patched("rnn_functions", _Functions), patched("packing_functions", _Functions):
        # The model itself has checked its states already; here the check would turn the batch into a number.
        nn.RNNBase.check_forward_args = nn.LSTM.check_forward_args = _no_check  # type: ignore[assignment]
        try:
            yield present
        finally:
            nn.RNNBase.check_forward_args = own  # type: ignore[method-assign]
            nn.LSTM.check_forward_args = _LSTM_CHECK  # type: ignore[method-assign]


_LSTM_CHECK = nn.LSTM.check_forward_args


def _no_check(module: nn.Module, *given: Any) -> None:
    return None


class _Functions:
    """`torch._VF` with recurrent layers and packing of our own; everything else is torch's."""

    def __init__(self, own: Any) -> None:
        self._own = own

    def __getattr__(self, name: str) -> Any:
        if not torch.compiler.is_exporting():  # the TorchScript exporter knows torch's own operators only
            return getattr(self._own, name)
        return _REPLACED.get(name) or getattr(self._own, name)


class BatchSizes:
    """Stands for the tensor `batch_sizes` of a packed sequence, knowing the lengths it comes from."""

    device = torch.device("cpu")

    def __init__(self, lengths: Tensor, steps: Any) -> None:
        self.lengths = lengths
        self.steps = steps
        self._padded: dict[int, tuple[Tensor, Tensor]] = {}

    def __getitem__(self, index: Any) -> Any:
        return self.lengths.shape[0] if index == 0 else self.tensor()[index]

    def size(self, axis: int = 0) -> _Longest:
        return _Longest(self.lengths)

    def tensor(self) -> Tensor:
        """As torch has it, but with a zero for each step beyond the longest."""
        return (self.lengths > torch.arange(self.steps).unsqueeze(1)).sum(1)

    def remember(self, packed: Tensor, padded: Tensor) -> Tensor:
        self._padded[id(packed)] = (packed, padded)  # the first keeps the id from being given away
        return packed

    def pad(self, packed: Tensor) -> Tensor:
        """The padded rows, steps first."""
        if id(packed) in self._padded:
            return self._padded[id(packed)][1]
        sizes = self.tensor()
        rows = (sizes.cumsum(0) - sizes).unsqueeze(1) + torch.arange(self.lengths.shape[0])
        real = self.lengths > torch.arange(self.steps).unsqueeze(1)
        return packed[torch.where(real, rows, 0)]

    def real(self) -> Tensor:
        """Which steps of which rows are no padding: steps, batch."""
        return self.lengths > torch.arange(self.steps).unsqueeze(1)


class _Longest:
    """The size of `batch_sizes`: the longest of the lengths. A comparison with it has been made by the model itself."""

    def __init__(self, lengths: Tensor) -> None:
        self.lengths = lengths

    def __gt__(self, total: Any) -> bool:
        return False

    def number(self, steps: Any) -> Any:
        longest = self.lengths.max().item()
        check(longest >= 1)
        check(longest <= steps)
        return longest


def _pack(input: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, BatchSizes]:
    padded = input.transpose(0, 1) if batch_first else input
    sizes = BatchSizes(lengths, padded.shape[0])
    return sizes.remember(padded[sizes.real()], padded), sizes


def _unpack(data: Tensor, sizes: BatchSizes, batch_first: bool, padding: float, total: Any) -> tuple[Tensor, Tensor]:
    padded, real = sizes.pad(data), sizes.real()
    real = real.reshape(*real.shape, *[1] * (padded.dim() - 2))
    padded = torch.where(real, padded, torch.full((), padding, dtype=padded.dtype))
    if isinstance(total, _Longest):
        padded = padded.narrow(0, 0, total.number(sizes.steps))
    else:
        rest = [0, 0] * (padded.dim() - 1)
        padded = nn.functional.pad(padded, [*rest, 0, total - sizes.steps], value=padding)
    return padded.transpose(0, 1) if batch_first else padded, sizes.lengths


def _lstm(input: Tensor, *given: Any) -> tuple[Tensor, ...]:
    """`_VF.lstm` in both its forms: of a padded tensor, and of packed rows with their batch sizes."""
    if isinstance(given[0], BatchSizes):
        sizes, (h, c), *options = given
        padded, h, c = _layers("LSTM", sizes.pad(input), sizes.lengths, (h, c), _options(options, batch_first=False))
        return sizes.remember(padded[sizes.real()], padded), h, c
    (h, c), *options = given
    return _layers("LSTM", input, None, (h, c), _options(options))


def _other(kind: str) -> Any:
    """The same for `_VF.gru` and its kin, which have one state."""

    def function(input: Tensor, *given: Any) -> tuple[Tensor, ...]:
        if isinstance(given[0], BatchSizes):
            sizes, h, *options = given
            padded, h = _layers(kind, sizes.pad(input), sizes.lengths, (h,), _options(options, batch_first=False))
            return sizes.remember(padded[sizes.real()], padded), h
        h, *options = given
        return _layers(kind, input, None, (h,), _options(options))

    return function


def _layers(
    kind: str, input: Tensor, lengths: Tensor | None, states: tuple[Tensor, ...], options: tuple[Any, ...]
) -> tuple[Tensor, ...]:
    """All layers of a module, as one operator of ours or step by step."""
    if input.dtype is not torch.float64:
        library.file("recurrent")
        operator, named = (torch.ops.torchport.lstm, ()) if kind == "LSTM" else (torch.ops.torchport.rnn, (kind,))
        return operator(*named, input, lengths, *states, *options)
    params, has_biases, num_layers, bidirectional, batch_first = options
    directions = 2 if bidirectional else 1
    cells = weights_of_cells(params, has_biases, num_layers * directions)
    return run(kind, input, states, cells, directions=directions, batch_first=batch_first, lengths=lengths)


def _options(options: Sequence[Any], batch_first: bool | None = None) -> tuple[Any, ...]:
    params, has_biases, num_layers, dropout, train, bidirectional, *rest = options
    if train and dropout and num_layers > 1:
        raise NotImplementedError("dropout between recurrent layers in train mode draws random numbers")
    return list(params), has_biases, num_layers, bidirectional, rest[0] if batch_first is None else batch_first


_REPLACED = {
    "lstm": _lstm,
    "gru": _other("GRU"),
    "rnn_tanh": _other("RNN_TANH"),
    "rnn_relu": _other("RNN_RELU"),
    "_pack_padded_sequence": _pack,
    "_pad_packed_sequence": _unpack,
}


# Recurrent layers step by step, where ONNX's own nodes will not do: the steps become a Scan.
#
#     LSTM   i, f, g, o = W·x + R·h      c' = σ(f)·c + σ(i)·tanh(g)     h' = P·(σ(o)·tanh(c'))
#     GRU    r, z, n of each             n' = tanh(n_x + σ(r)·n_h)      h' = (h - n')·σ(z) + n'
#     RNN    h' = tanh(W·x + R·h), or relu
#
# A direction of a layer is a `Cell`, which knows how to make the gates of what it is given. Beyond a row's own length
# the state stays as it is, and the output is zero.

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

    ended, outputs = part("scan")(one, states, [g.flip(0) for g in given] if reverse else given)
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


def weights_of_cells(params: Sequence[Any], has_biases: bool, count: int) -> list[Weights]:
    """The weights of all directions of all layers, as PyTorch lists them, apart."""
    own = len(params) // count
    apart = [params[start : start + own] for start in range(0, len(params), own)]
    biases = 2 if has_biases else 0
    return [Weights(p[0], p[1], p[2 : 2 + biases], p[2 + biases] if own > 2 + biases else None) for p in apart]
