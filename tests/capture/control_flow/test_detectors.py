"""Detectors are exported with every branch, and right where nothing is found."""

from __future__ import annotations

from pathlib import Path

import detector_models
import pytest
import torch
from agreement import check

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
