"""Detectors are exported with every branch, and right where nothing is found."""

from __future__ import annotations

from pathlib import Path

import detector_models
import pytest
import torch
from agreement import check
from torch import Tensor, nn

import torchport as tp

ROWS = {"boxes": {0: "rows"}, "logits": {0: "rows"}}


@pytest.mark.parametrize("name", detector_models.HEADS)
def test_a_head_is_right_however_many_boxes_it_finds(name: str, tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = detector_models.HEADS[name]().eval()
    others = [detector_models.candidates(rows, level) for rows in (3, 5, 9, 16) for level in (0.0, -20.0, 3.0)]
    check(tmp_path, model, detector_models.candidates(8), others, dynamic=ROWS)


def test_an_image_is_scaled_by_a_quotient_of_its_sizes(tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = detector_models.Resized().eval()
    others = [([torch.rand(3, *size)],) for size in ((20, 28), (28, 20), (17, 50), (33, 33), (60, 13))]
    dynamic = {"images.0": {1: "height", 2: "width"}}
    exported, _ = check(tmp_path, model, ([torch.rand(3, 24, 32)],), others, dynamic=dynamic)
    assert exported.proof.passed


class ReshapesBoxes(nn.Module):
    """As detectors decode boxes: the reshape is left out where there are none, and the rank is another."""

    def forward(self, x: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor]:
        chosen = x[x[:, 0] > threshold]
        codes = torch.cat([chosen, chosen * 2], 1)
        count = chosen.shape[0]
        if count > 0:
            codes = codes.reshape(count, -1, 4)
        boxes = codes[:, 1:].reshape(-1, 4)
        return boxes, boxes.sum()


class GivesTheRank(nn.Module):
    """The other rank is seen outside: an empty tensor of rank 3 is another answer."""

    def forward(self, x: Tensor, threshold: Tensor) -> Tensor:
        chosen = x[x[:, 0] > threshold]
        if chosen.shape[0] > 0:
            chosen = chosen.reshape(chosen.shape[0], 2, 2)
        return chosen


def test_an_empty_tensor_of_another_rank_takes_the_rank_of_the_other_branch() -> None:
    model, x = ReshapesBoxes(), torch.randn(10, 4)
    exported = tp.export(model, (x, torch.tensor(0.0)), dynamic={"x": {0: "n"}})
    assert exported.route == "rewrite"
    session = tp.session(exported.model)
    for threshold in (-9.0, 0.5, 99.0):
        given = (x, torch.tensor(threshold))
        for found, expected in zip(session(*given), model(*given), strict=True):
            torch.testing.assert_close(found, expected)


def test_a_rank_that_the_caller_sees_is_kept() -> None:
    """The route rewrite is not proven: the case of zeros has no rows. The route script gives either rank."""
    model, x = GivesTheRank(), torch.randn(10, 4)
    exported = tp.export(model, (x, torch.tensor(0.0)), dynamic={"x": {0: "n"}})
    session = tp.session(exported.model)
    for threshold in (-9.0, 99.0):
        torch.testing.assert_close(session(x, torch.tensor(threshold)), model(x, torch.tensor(threshold)))


class PastesMasks(nn.Module):
    """As detectors paste masks into an image: slices of both sides have bounds that only the boxes tell."""

    def forward(self, masks: Tensor, boxes: Tensor, image: Tensor) -> Tensor:
        height, width = image.shape
        pasted = []
        for mask, box in zip(masks, boxes.to(torch.int64), strict=True):
            canvas = torch.zeros(height, width)
            left, right = max(box[0], 0), min(box[0] + 7, width)
            top, bottom = max(box[1], 0), min(box[1] + 5, height)
            canvas[top:bottom, left:right] = mask[top - box[1] : bottom - box[1], left - box[0] : right - box[0]]
            pasted.append(canvas)
        return torch.stack(pasted)


def test_masks_are_pasted_where_the_values_say(tmp_path: Path) -> None:
    def inputs(count: int, height: int, width: int) -> tuple[Tensor, ...]:
        corners = torch.rand(count, 2) * torch.tensor([width, height]) - 3.0
        return torch.rand(count, 5, 7), corners, torch.rand(height, width)

    torch.manual_seed(3)
    dynamic = {"masks": {0: "count"}, "boxes": {0: "count"}, "image": {0: "height", 1: "width"}}
    others = [inputs(count, *size) for count in (1, 4) for size in ((20, 30), (9, 11))]
    check(tmp_path, PastesMasks(), inputs(3, 16, 20), others, dynamic=dynamic)
