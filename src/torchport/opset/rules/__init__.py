"""All rules, by operator and border. A new file of rules is added to `_FILES`, nothing else."""

from __future__ import annotations

import importlib
from types import MappingProxyType

from torchport.irtools.builder import Rule, Rules

_FILES = ("arithmetic", "constants", "indexing", "layers", "normalization", "reductions", "resize", "shapes")


def _joined(side: str) -> MappingProxyType[tuple[str, int], Rule]:
    joined: Rules = {}
    for file in _FILES:
        rules: Rules = getattr(importlib.import_module(f"{__package__}.{file}"), side)
        twice = joined.keys() & rules.keys()
        if twice:
            raise RuntimeError(f"two rules for {sorted(twice)}")
        joined.update(rules)
    return MappingProxyType(joined)


DOWN = _joined("DOWN")
UP = _joined("UP")
