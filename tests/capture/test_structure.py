"""Nested arguments become named tensors and come back whole."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

from torchport.capture.structure import Call, FlatModule, output_tensors, put_together, take_apart
from torchport.errors import InputError


@dataclasses.dataclass(frozen=True)
class Pair:
    left: torch.Tensor
    right: Any


Point = collections.namedtuple("Point", "x y")
ONE = torch.ones(1)


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (ONE, ["a"]),
        ((ONE, [ONE, 3]), ["a.0", "a.1.0"]),
        ({"x": ONE, "y": {"z": ONE}}, ["a.x", "a.y.z"]),
        (Pair(ONE, (ONE, None)), ["a.left", "a.right.0"]),
        (Point(ONE, "text"), ["a.x"]),
        (collections.OrderedDict(b=ONE, a=ONE), ["a.b", "a.a"]),
        (None, []),
    ],
)
def test_every_container_is_taken_apart_and_put_together_again(value: Any, names: list[str]) -> None:
    tensors: list[torch.Tensor] = []
    node = take_apart(value, "a", tensors)
    assert [s.name for s in Call(lambda a: a, (value,), {}).arguments and _slots(node)] == names
    again = put_together(node, tensors)
    assert type(again) is type(value)
    assert again == value


def _slots(node: Any) -> list[Any]:
    from torchport.capture.structure import slots

    return list(slots(node))


class Wide(nn.Module):
    def forward(self, a: torch.Tensor, *rest: torch.Tensor, flag: bool = False, **named: torch.Tensor) -> Any:
        return a + sum(rest) + named["k"], flag


def test_inputs_are_named_after_parameters_in_the_order_of_the_signature() -> None:
    call = Call(Wide(), (ONE, ONE, ONE), {"k": ONE, "flag": True})
    assert call.names == ["a", "rest.0", "rest.1", "k"]
    assert [f.name for f in call.fixed] == ["flag"]


def test_a_call_gives_the_models_own_answer() -> None:
    call = Call(Wide(), (ONE, ONE), {"k": ONE})
    answer, flag = call(ONE, 2 * ONE, 3 * ONE)
    assert answer.item() == 6
    assert flag is False


def test_wrong_arguments_are_said_with_the_signature() -> None:
    with pytest.raises(InputError, match="missing a required argument: 'a'") as caught:
        Call(Wide(), (), {})
    assert "Wide(a" in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "names"),
    [
        (ONE, ["output"]),
        ((ONE,), ["output"]),
        ((ONE, ONE), ["output_0", "output_1"]),
        ({"logits": ONE, "hidden": (ONE, ONE)}, ["logits", "hidden.0", "hidden.1"]),
        (Pair(ONE, None), ["left"]),
        (Point(ONE, 3), ["x", "y"]),
        ((ONE, None, "text", 2.5), ["output_0", "output_3"]),
    ],
)
def test_outputs_are_named_by_keys_and_none_is_left_out(answer: Any, names: list[str]) -> None:
    found, tensors = output_tensors(answer)
    assert found == names
    assert all(isinstance(t, torch.Tensor) for t in tensors)


def test_a_flat_module_takes_and_gives_flat_tensors() -> None:
    flat = FlatModule(Call(Wide(), (ONE, ONE), {"k": ONE}))
    outputs = flat(ONE, ONE, ONE)
    assert isinstance(outputs, tuple)
    assert [o.tolist() for o in outputs] == [[3.0], False]
