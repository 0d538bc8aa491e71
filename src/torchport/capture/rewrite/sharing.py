"""Tensors that share memory inside of a loop: a view that is written, beside what it is a view of.

In the graph each is a value of its own, so that a write to one is not seen in the other before the loop ends. Whether
that matters only the proof can tell; if it does, this is why.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence

import torch

from torchport.capture.blame import place, site_of_stack
from torchport.results import Finding

_noticed: list[Finding] = []


@contextlib.contextmanager
def noticing() -> Iterator[list[Finding]]:
    """Collect the loops in which this happens, each with its line."""
    _noticed.clear()
    found: list[Finding] = []
    try:
        yield found
    finally:
        found += dict.fromkeys(_noticed)
        _noticed.clear()


def look_for_shared(name: str, written: torch.Tensor, used: Sequence[torch.Tensor]) -> None:
    """Notice a tensor that the running loop writes, if it uses one with the same memory too."""
    site = site_of_stack(sys._getframe(1))
    if site is not None and any(t is not written and _memory(t) == _memory(written) for t in used):
        what = f"the loop writes to {name}, which shares its memory with another tensor that the loop uses"
        _noticed.append(Finding(what, place(site.codes[0].co_filename, site.line)))


def _memory(tensor: torch.Tensor) -> int:
    address: int = tensor.untyped_storage()._cdata
    return address
