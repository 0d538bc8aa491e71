"""Options of a comparison that cannot be meant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from torchport.engines import base
from torchport.errors import EngineMissingError, OptionError

_ELSEWHERE = ("coreml", "ncnn", "openvino", "tensorrt", "tvm")  # engines that may come with other packages


def check_outputs(outputs: Mapping[str, str]) -> None:
    told = list(outputs.values())
    twice = [name for name in told if told.count(name) > 1]
    if twice:
        raise OptionError(f"output '{twice[0]}' is given twice", next_step="each output has one partner")


def check_engines(names: Sequence[str], *, alone: bool) -> None:
    """Whether these can be meant; one that is known but not installed here can."""
    here = base.engines()
    unknown = [n for n in names if n not in here and n not in _ELSEWHERE]
    if unknown:
        close = get_close_matches(unknown[0], [*here, *_ELSEWHERE], n=1)
        raise EngineMissingError(
            f"there is no engine '{unknown[0]}'",
            next_step=f"did you mean '{close[0]}'?" if close else f"use one of: {', '.join(sorted(here))}",
        )
    if not names:
        raise OptionError("no engine is named", next_step=f"use one of: {', '.join(sorted(here))}")
    if alone and len(names) < 2:
        raise OptionError("there is one model and one engine: nothing to compare with", next_step="name two engines")
    if not alone and len(names) > 1:
        raise OptionError(
            f"there are two models and {len(names)} engines", next_step="name one engine, or give one model"
        )
