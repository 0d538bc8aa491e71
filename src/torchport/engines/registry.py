"""The engines that are installed, found by their entry points, and what each of them can run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from importlib.metadata import entry_points
from typing import Any

import numpy as np

from torchport.errors import EngineError, EngineMissingError, OptionError, TorchportError, did_you_mean


@contextlib.contextmanager
def faults_of(engine: str) -> Iterator[None]:
    """What an engine raises, other than what it should: reported as the engine's, not as torchport's own.

    Example:
        >>> with faults_of("openvino"):
        ...     session.run(feeds)
    """
    try:
        with np.errstate(all="ignore"):  # numbers that overflow are what is looked for
            yield
    except TorchportError:
        raise
    except Exception as error:
        text = str(error).strip().splitlines()
        told = f"{type(error).__name__}{': ' + text[0] if text else ''}"
        raise EngineError(f"the engine '{engine}' failed: {told}") from error


def check_engine(engine: str) -> None:
    """Raises EngineMissingError if there is no engine of that name here."""
    known = sorted(e.name for e in entry_points(group="torchport.engines"))
    if engine not in known:
        raise EngineMissingError(f"there is no engine '{engine}' here", next_step=f"use one of: {', '.join(known)}")


def engines() -> dict[str, Any]:
    """The engines installed here, by name: torchport's own and those other packages register."""
    return {e.name: e for e in entry_points(group="torchport.engines")}


_ELSEWHERE = ("coreml", "ncnn", "openvino", "tensorrt", "tvm")  # engines that may come with other packages


def check_engines(names: Sequence[str], *, alone: bool) -> None:
    """Whether these can be meant; one that is known but not installed here can."""
    here = engines()
    unknown = [n for n in names if n not in here and n not in _ELSEWHERE]
    if unknown:
        hint = did_you_mean(unknown[0], [*here, *_ELSEWHERE], f"use one of: {', '.join(sorted(here))}", most=1)
        raise EngineMissingError(f"there is no engine '{unknown[0]}'", next_step=hint)
    if not names:
        raise OptionError("no engine is named", next_step=f"use one of: {', '.join(sorted(here))}")
    if alone and len(names) < 2:
        raise OptionError("there is one model and one engine: nothing to compare with", next_step="name two engines")
    if not alone and len(names) > 1:
        raise OptionError(
            f"there are two models and {len(names)} engines", next_step="name one engine, or give one model"
        )
