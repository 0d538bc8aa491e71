"""The table of models, and the short forms in which the families fill it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from spec import Input, Several, Spec
from torch import nn

SPECS: dict[str, Spec] = {}

Build = Callable[[], nn.Module]


def add(
    name: str,
    inputs: Mapping[str, Input | Several],
    *,
    random: bool = False,
    fixed: Mapping[str, Any] | None = None,
    steps: Mapping[str, int] | None = None,
    limits: Mapping[str, int] | None = None,
    **sizes: tuple[int, ...],
) -> Callable[[Build], Build]:
    """Register the function below as the one that builds a model.

    Args:
        name: the package's name on PyPI, a slash, and the model's.
        inputs: by parameter name.
        random: draw the weights of the convolutions anew; see `spread`.
        fixed: arguments that are no tensors.
        steps: what a dimension is a multiple of, where the model takes no other size.
        limits: the largest size of a dimension, where the model has one.
        sizes: of each dynamic dimension the example's size, and then the sizes to check.
    """

    def register(build: Build) -> Build:
        counts = {len(given) for given in sizes.values()}
        assert len(counts) == 1, f"{name}: {counts} sizes"
        assert name not in SPECS, name
        columns = [dict(zip(sizes, column, strict=True)) for column in zip(*sizes.values(), strict=True)]
        made = (lambda: spread(build())) if random else build
        SPECS[name] = Spec(made, inputs, columns[0], tuple(columns[1:]), fixed or {}, limits or {}, steps or {})
        return build

    return register


def spread(model: nn.Module, nonlinearity: Literal["relu", "linear"] = "relu") -> nn.Module:
    """Give convolutions weights that keep the size of the numbers. Those a deep network starts with let its answer
    hardly depend on its input, and scores that are all alike have no order to check. `linear` is for a network of
    residual blocks, whose numbers grow from block to block."""
    for part in model.modules():
        weight = getattr(part, "weight", None)
        if isinstance(weight, nn.Parameter) and weight.dim() > 3:
            nn.init.kaiming_normal_(weight, nonlinearity=nonlinearity)
    return model


def image(
    name: str = "x", channels: int = 3, height: int | str = "height", width: int | str = "width"
) -> dict[str, Input]:
    """A batch of pictures with numbers between 0 and 1, of any height and width."""
    return {name: Input(("batch", channels, height, width), between=(0.0, 1.0))}


def feature(name: str = "x", *shape: int | str) -> dict[str, Input]:
    return {name: Input(shape)}
