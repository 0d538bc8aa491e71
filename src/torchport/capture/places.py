"""A place in the user's code."""

from __future__ import annotations

import dataclasses
from types import CodeType


@dataclasses.dataclass(frozen=True)
class Site:
    """A line, and the code of the user's functions that led there, the innermost first."""

    codes: tuple[CodeType, ...]
    line: int
