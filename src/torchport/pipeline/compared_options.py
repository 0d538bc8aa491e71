"""Options of a comparison that cannot be meant."""

from __future__ import annotations

from collections.abc import Mapping

from torchport.errors import OptionError


def check_outputs(outputs: Mapping[str, str]) -> None:
    told = list(outputs.values())
    twice = [name for name in told if told.count(name) > 1]
    if twice:
        raise OptionError(f"output '{twice[0]}' is given twice", next_step="each output has one partner")
