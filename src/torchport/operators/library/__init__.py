"""Translations torchport ships: where torch's own is missing or wrong. One file an operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def translations() -> dict[Any, Callable[..., Any]]:
    """Torch operator to translation, as `torch.onnx.export` takes it in its custom translation table."""
    import math
    import operator

    import torch

    from torchport.operators.library import matmul_integer, numbers_of_sizes, quantized_decomposed, recurrent, shifts
    from torchport.operators.library.expm1 import expm1
    from torchport.operators.library.grouped_mm import grouped_mm
    from torchport.operators.library.masked_select import masked_select
    from torchport.operators.library.scaled_dot_product_attention import scaled_dot_product_attention
    from torchport.operators.library.sort_stable import sort_stable

    aten, own = torch.ops.aten, torch.ops.torchport
    return {
        operator.add: numbers_of_sizes.arithmetic("Add"),
        operator.sub: numbers_of_sizes.arithmetic("Sub"),
        operator.mul: numbers_of_sizes.arithmetic("Mul"),
        operator.pow: numbers_of_sizes.arithmetic("Pow"),
        operator.truediv: numbers_of_sizes.truediv,
        operator.floordiv: numbers_of_sizes.floordiv,
        operator.mod: numbers_of_sizes.mod,
        torch.sym_float: numbers_of_sizes.sym_float,
        vars(torch)["_sym_sqrt"]: numbers_of_sizes.sqrt,
        math.floor: numbers_of_sizes.rounding("Floor"),
        math.ceil: numbers_of_sizes.rounding("Ceil"),
        math.trunc: numbers_of_sizes.trunc,
        round: numbers_of_sizes.rounding("Round"),
        aten.expm1.default: expm1,
        aten._grouped_mm.default: grouped_mm,
        **_of_others(grouped_mm),
        aten.masked_select.default: masked_select,
        aten.scaled_dot_product_attention.default: scaled_dot_product_attention,
        own.lstm.default: recurrent.lstm,
        own.rnn.default: recurrent.rnn,
        aten.lstm.input: recurrent.aten_lstm,
        aten.gru.input: recurrent.aten_rnn("GRU"),
        aten.rnn_tanh.input: recurrent.aten_rnn("RNN_TANH"),
        aten.rnn_relu.input: recurrent.aten_rnn("RNN_RELU"),
        aten.sort.stable: sort_stable,
        aten.__lshift__.Scalar: shifts.left,
        aten.__lshift__.Tensor: shifts.left,
        aten.__rshift__.Scalar: shifts.right,
        aten.__rshift__.Tensor: shifts.right,
        aten.bitwise_left_shift.Tensor: shifts.left,
        aten.bitwise_left_shift.Tensor_Scalar: shifts.left,
        aten.bitwise_right_shift.Tensor: shifts.right,
        aten.bitwise_right_shift.Tensor_Scalar: shifts.right,
        own.matmul_integer.default: matmul_integer.matmul_integer,
        aten._int_mm.default: matmul_integer.int_mm,
        **quantized_decomposed.translations(),
    }


def _of_others(grouped_mm: Callable[..., Any]) -> dict[Any, Callable[..., Any]]:
    """Operators of other packages, where they are imported."""
    import torch

    fallback = getattr(torch.ops.transformers, "grouped_mm_fallback", None)
    return {fallback.default: grouped_mm} if fallback is not None else {}
