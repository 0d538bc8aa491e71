"""Something wrong with a model, and what to do about it."""

from __future__ import annotations

import dataclasses
from typing import Literal

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


@dataclasses.dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        severity: ``error`` for a model that is no valid ONNX or will not run, ``warning`` for one that is likely not
            meant so, ``note`` for what does no harm.
        rule: what was looked for, ``unused-node`` say.
        message: what is wrong.
        next_step: what to do.
        node: the node it is about, if it is about one.
        tensor: the value or weight it is about, if it is about one.
        source: the Python line the node comes from.
    """

    severity: Severity
    rule: str
    message: str
    next_step: str
    node: str = ""
    tensor: str = ""
    source: str = ""

    def __str__(self) -> str:
        where = f" ({self.source})" if self.source else ""
        return f"{self.severity}: {self.message}{where} [{self.rule}]"
