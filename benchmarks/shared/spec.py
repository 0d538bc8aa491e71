"""What a benchmark knows of a model: how to build it, what it takes, and the sizes it is checked at."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

Size = int | str
Sizes = dict[str, int]


@dataclasses.dataclass(frozen=True)
class Input:
    """One tensor. Axes given by a name vary.

    Attributes:
        high: integers below this number, instead of floats; a dimension's name stands for its size.
        ordered: each row of them rising, as the corners of boxes do.
        ones: a padding mask.
        between: floats spread evenly between these two, instead of normal ones.
        make: makes the tensor from its shape and the generator, where it has to be a certain one.
    """

    shape: tuple[Size, ...]
    high: Size = 0
    ones: bool = False
    ordered: bool = False
    between: tuple[float, float] | None = None
    make: Callable[[list[int], torch.Generator], torch.Tensor] | None = None

    def sample(self, sizes: Sizes, generator: torch.Generator, *, padded: bool) -> torch.Tensor:
        shape = [_size(s, sizes) for s in self.shape]
        if self.make:
            return self.make(shape, generator)
        if self.ones:
            return _mask(shape, padded=padded)
        if self.high:
            numbers = torch.randint(0, _size(self.high, sizes), shape, generator=generator)
            return numbers.sort(dim=-1).values if self.ordered else numbers
        if self.between:
            low, high = self.between
            return low + (high - low) * torch.rand(shape, generator=generator)
        return torch.randn(shape, generator=generator)

    @property
    def dynamic(self) -> dict[int, str]:
        return {axis: size for axis, size in enumerate(self.shape) if isinstance(size, str)}


def _size(size: Size, sizes: Sizes) -> int:
    return sizes[size] if isinstance(size, str) else size


def _mask(shape: list[int], *, padded: bool) -> torch.Tensor:
    """Ones; each row but the first with zeros at its end where it is padded."""
    mask = torch.ones(shape, dtype=torch.int64)
    for row in range(1, shape[0] if padded else 0):
        mask[row, max(1, shape[1] - row) :] = 0
    return mask


@dataclasses.dataclass(frozen=True)
class Cache:
    """A DynamicCache of `transformers`, filled: keys and values of each layer."""

    heads: int
    width: int
    layers: int = 2

    @property
    def tensors(self) -> dict[str, Input]:
        """By the place in the cache; the order is the one in which exporters take it apart."""
        one = Input(("batch", self.heads, "past", self.width))
        return {f"layers.{i}.{part}": one for i in range(self.layers) for part in ("keys", "values")}

    def sample(self, sizes: Sizes, generator: torch.Generator, *, padded: bool) -> Any:
        from transformers import DynamicCache

        filled = [one.sample(sizes, generator, padded=padded) for one in self.tensors.values()]
        return DynamicCache(list(zip(filled[::2], filled[1::2], strict=True)))


@dataclasses.dataclass(frozen=True)
class Several:
    """A list or a dict of tensors as one argument."""

    parts: Mapping[str, Input]
    as_dict: bool = False

    @property
    def tensors(self) -> dict[str, Input]:
        return dict(self.parts)

    def sample(self, sizes: Sizes, generator: torch.Generator, *, padded: bool) -> Any:
        filled = {name: one.sample(sizes, generator, padded=padded) for name, one in self.parts.items()}
        return filled if self.as_dict else list(filled.values())


@dataclasses.dataclass(frozen=True)
class Spec:
    """One model of a benchmark.

    Attributes:
        inputs: by parameter name.
        example: the sizes it is exported at.
        unseen: the sizes it is checked at.
        fixed: arguments that are no tensors.
        limits: the largest size of a dimension, where the model has one.
        steps: the number a dimension is a multiple of, where the model takes no other size.
    """

    build: Callable[[], nn.Module]
    inputs: Mapping[str, Input | Cache | Several]
    example: Sizes
    unseen: tuple[Sizes, ...]
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    limits: Mapping[str, int] = dataclasses.field(default_factory=dict)
    steps: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def arguments(self, sizes: Sizes, seed: int, *, padded: bool = False) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(seed)
        return {name: given.sample(sizes, generator, padded=padded) for name, given in self.inputs.items()}

    @property
    def tensors(self) -> dict[str, Input]:
        """Every tensor by its dotted name."""
        found: dict[str, Input] = {}
        for name, given in self.inputs.items():
            parts = {"": given} if isinstance(given, Input) else given.tensors
            found |= {f"{name}.{part}".rstrip("."): one for part, one in parts.items()}
        return found

    def model(self) -> nn.Module:
        """The model with random weights. Weights that start out all alike (zeros, ones, a layer scale of 1e-6) hide
        mistakes, so they get some noise. Some libraries draw weights with Python's or NumPy's generator: the model is
        built twice, and has to be the same."""
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        model = self.build().float().eval()
        with torch.no_grad():
            for weight in model.parameters():
                if weight.is_floating_point() and weight.numel() > 1 and bool((weight == weight.flatten()[0]).all()):
                    weight.add_(0.1 * torch.randn_like(weight))
        return model


def declare_torchvision_operators() -> None:
    """PyPI's torchvision brings its operators in a library for CUDA. Beside a CPU torch it does not load, and
    torchvision then trips over operators it takes for granted; their schemas are enough for it."""
    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
