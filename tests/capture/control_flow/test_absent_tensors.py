"""A function that returns None instead of a tensor where the values make it superfluous: masks without padding."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from agreement import check
from torch import nn

import torchport as tp
from torchport.errors import RefusedError

IDS = torch.tensor([[3, 2, 1, 4, 0], [2, 4, 3, 1, 1]])
UNSEEN = [(torch.full((2, 5), 3),), (torch.tensor([[1, 0, 2]]),), (torch.tensor([[2, 0, 2, 3], [0, 0, 4, 4]]),)]


def padding_mask(ids, padding=1):
    mask = ids.eq(padding)
    if not mask.any():
        mask = None
    return mask


def padding_mask_in_one_line(ids):
    mask = ids.eq(1)
    return mask if mask.any() else None


class Pooled(nn.Module):
    mask = staticmethod(padding_mask)

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 4)

    def forward(self, ids):
        mask, hidden = self.mask(ids), self.embedding(ids)
        if mask is not None:
            hidden = hidden.masked_fill(mask[..., None], 0.0)
        return hidden.sum(1)


class InOneLine(Pooled):
    mask = staticmethod(padding_mask_in_one_line)


class OtherWithoutMask(Pooled):
    """The mask changes more than what it masks."""

    def forward(self, ids):
        mask, hidden = self.mask(ids), self.embedding(ids)
        return hidden.sum(1) if mask is None else hidden.masked_fill(mask[..., None], 0.0).sum(1) + 1


class NeverPadded(Pooled):
    """No id of the example's kind is the one that is masked."""

    mask = staticmethod(lambda ids: padding_mask(ids, 77))


DYNAMIC = {"ids": {0: "batch", 1: "length"}}


@pytest.mark.parametrize("model", [Pooled, InOneLine])
def test_a_mask_that_is_none_without_padding_is_always_applied(model: type, tmp_path: Path) -> None:
    torch.manual_seed(0)
    exported, _ = check(tmp_path, model().eval(), (IDS,), UNSEEN, dynamic=DYNAMIC, route="rewrite")
    assert any("None" in f.message for f in exported.findings)


def test_a_model_that_gives_something_else_without_the_mask_is_refused() -> None:
    with pytest.raises(RefusedError, match="does not give the PyTorch model's answers"):
        tp.export(OtherWithoutMask().eval(), (IDS,), dynamic=DYNAMIC, route="rewrite")


def test_a_mask_that_no_case_needs_is_refused() -> None:
    with pytest.raises(RefusedError, match=r"test_absent_tensors\.py:\d+, and no case went the other way"):
        tp.export(NeverPadded().eval(), (IDS,), dynamic=DYNAMIC, route="rewrite")
