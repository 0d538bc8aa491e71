"""Attributes that a branch or a round of a loop changes: part of what it gives, like a variable.

Both sides of an `if` are run while they are traced, but only one of them is meant. So what each does to the model, and
to the plain objects it finds, is noticed, undone, and carried along as values.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from torchport.capture.rewrite.merging import UNSET, Number, Unset
from torchport.capture.rewrite.objects import plain_objects

_CARRIED = (torch.Tensor, *Number, str, list, tuple, dict, type(None), Unset)
_watched: list[torch.nn.Module] = []


@contextlib.contextmanager
def watching(model: Any) -> Iterator[None]:
    """Notice what is changed in this model."""
    _watched[:] = list(model.modules()) if isinstance(model, torch.nn.Module) else []
    try:
        yield
    finally:
        _watched.clear()


@dataclasses.dataclass(frozen=True)
class Place:
    """An attribute, a buffer or a parameter: an entry of a dictionary of a module or an object."""

    holder: Any
    key: str

    def get(self) -> Any:
        return self.holder.get(self.key, UNSET)

    def set(self, value: Any) -> None:
        if isinstance(value, Unset):
            self.holder.pop(self.key, None)
        else:
            self.holder[self.key] = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Place) and self.holder is other.holder and self.key == other.key

    def __hash__(self) -> int:
        return hash((id(self.holder), self.key))


@contextlib.contextmanager
def undone(*found: Any) -> Iterator[list[Place]]:
    """Undo what is done to the model and to objects; at the end the list holds the places that were changed.

    Args:
        found: functions and values, in which the objects are looked for.
    """
    holders: list[Any] = [h for m in _watched for h in (m.__dict__, m._buffers, m._parameters)]
    of_objects = [vars(o) for o in plain_objects(*found)]
    before = [dict(h) for h in (*holders, *of_objects)]
    changed: list[Place] = []
    try:
        yield changed
    finally:
        for number, (holder, then) in enumerate(zip((*holders, *of_objects), before, strict=True)):
            different = [k for k in {**holder, **then} if holder.get(k, UNSET) is not then.get(k, UNSET)]
            if number >= len(holders):  # what cannot be carried an object may keep, as a thing it found out once
                different = [k for k in different if isinstance(holder.get(k, UNSET), _CARRIED)]
            changed += [Place(holder, key) for key in different]
            for key in different:
                Place(holder, key).set(then.get(key, UNSET))


def carrying(function: Callable[..., Any], places: Sequence[Place]) -> Callable[..., Any]:
    """A function that takes the values of these places first, and gives the new ones first."""

    def carried(*arguments: Any) -> Any:
        before = [p.get() for p in places]
        try:
            for place, value in zip(places, arguments, strict=False):
                place.set(value)
            result = function(*arguments[len(places) :])
            return [p.get() for p in places], result
        finally:
            for place, value in zip(places, before, strict=True):
                place.set(value)

    return carried
