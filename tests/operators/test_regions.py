"""Operators on boxes, defined here with torchvision's schema: torchvision itself is not among the tests' packages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from agreement import check
from torch import nn

import torchport as tp


def _overlap(one: torch.Tensor, other: torch.Tensor) -> float:
    sides = (torch.minimum(one[2:], other[2:]) - torch.maximum(one[:2], other[:2])).clamp(min=0)
    areas = [float((box[2:] - box[:2]).prod()) for box in (one, other)]
    return float(sides.prod()) / (sum(areas) - float(sides.prod()))


def _nms(dets: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    kept: list[int] = []
    for place in scores.sort(stable=True, descending=True).indices.tolist():
        if not any(_overlap(dets[best], dets[place]) > iou_threshold for best in kept):
            kept.append(place)
    return torch.tensor(kept, dtype=torch.int64)


def _fake(dets: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    return dets.new_empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.int64)


@pytest.fixture
def nms() -> Iterator[None]:
    library = torch.library.Library("torchvision", "FRAGMENT")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.impl("nms", _nms, "CPU")
    torch.library.register_fake("torchvision::nms", _fake, lib=library)
    try:
        yield
    finally:
        library._destroy()


class Kept(nn.Module):
    def forward(self, boxes: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return torch.ops.torchvision.nms(boxes, scores, 0.3)


def _boxes(rows: int, *, in_order: bool) -> tuple[torch.Tensor, torch.Tensor]:
    first, second = torch.rand(rows, 2) * 5, torch.rand(rows, 2) * 5
    second = first + second if in_order else second
    return torch.cat([first, second], 1), torch.rand(rows)


@pytest.mark.usefixtures("nms")
def test_suppression_keeps_what_pytorch_keeps_whichever_way_round_the_corners_are(tmp_path: Path) -> None:
    torch.manual_seed(0)
    others = [_boxes(rows, in_order=order) for rows in (2, 5, 20) for order in (True, False)]
    dynamic = {"boxes": {0: "rows"}, "scores": {0: "rows"}}
    exported, nodes = check(tmp_path, Kept(), _boxes(8, in_order=True), others, dynamic=dynamic)
    assert exported.route == "export"
    assert nodes["NonMaxSuppression"] == 1
    session = tp.session(tmp_path / "model.onnx")
    assert session(torch.zeros(0, 4), torch.zeros(0)).shape == (0,)
