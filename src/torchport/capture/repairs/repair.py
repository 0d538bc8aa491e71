"""What a repair is: a known failure of torch's exporter, or a known difference between a model and its capture, fixed.

@capture_repair("name that an attempt shows")                    always on
@capture_repair("name", after=_function_of_the_error)            only after a capture failed with an error it knows
@program_repair("name")                                          after a translation failed with an error it knows
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

Program = torch.export.ExportedProgram


@dataclasses.dataclass(frozen=True)
class CaptureRepair:
    """A repair that is active while a model is captured, and leaves the model as it was.

    Attributes:
        name: what an attempt shows.
        active: given the user's model, a context manager whose value is true, at the end, if it changed anything.
        knows: whether the repair is the one for an error of a capture.
    """

    name: str
    active: Callable[[Any], AbstractContextManager[Any]]
    knows: Callable[[Exception], bool]


@dataclasses.dataclass(frozen=True)
class ProgramRepair:
    """A repair of a program whose translation failed.

    Attributes:
        name: what an attempt shows.
        repair: given the program and the error, the program to translate instead; None if it does not know the error.
    """

    name: str
    repair: Callable[[Program, Exception], Program | None]


def capture_repair(
    name: str, *, after: Callable[[Exception], bool] = lambda error: False
) -> Callable[[Callable[[Any], AbstractContextManager[Any]]], CaptureRepair]:
    """Make a repair of a context manager."""
    return lambda active: CaptureRepair(name, active, after)


def program_repair(name: str) -> Callable[[Callable[[Program, Exception], Program | None]], ProgramRepair]:
    """Make a repair of a function of the program and the error."""
    return lambda repair: ProgramRepair(name, repair)
