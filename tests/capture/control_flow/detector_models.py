"""Detectors in plain PyTorch: sizes from quotients, guards of the empty case, counts that only the values know."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as functional
from torch import nn


class Resized(nn.Module):
    """An image scaled to fit into bounds, put into a canvas of a multiple of 8, and boxes scaled back."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 3, stride=2, padding=1)

    def forward(self, images: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        image = images[0]
        height, width = image.shape[-2:]
        scale = min(24 / min(height, width), 40 / max(height, width))
        small = functional.interpolate(image[None], scale_factor=scale, mode="bilinear", recompute_scale_factor=True)[0]
        sizes = list(small.shape)
        sizes[1] = int(math.ceil(float(sizes[1]) / 8.0) * 8.0)
        sizes[2] = int(math.ceil(float(sizes[2]) / 8.0) * 8.0)
        canvas = small.new_full([1, *sizes], 0)
        for n in range(canvas.shape[0]):
            canvas[n, :, : small.shape[1], : small.shape[2]].copy_(small)
        back = torch.tensor(height, dtype=torch.float32) / torch.tensor(small.shape[1], dtype=torch.float32)
        return self.layer(canvas), back * torch.ones(4)


def iou(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    low = torch.maximum(one[:, None, :2], other[None, :, :2])
    high = torch.minimum(one[:, None, 2:], other[None, :, 2:])
    shared = (high - low).clamp(min=0).prod(2)
    areas = [(b[:, 2:] - b[:, :2]).prod(1) for b in (one, other)]
    return shared / (areas[0][:, None] + areas[1][None, :] - shared)


def suppressed(boxes: torch.Tensor, scores: torch.Tensor, limit: float) -> torch.Tensor:
    """Non-maximum suppression as it is written by hand."""
    keep = []
    order = scores.argsort(descending=True)
    while order.numel() > 0:
        best = order[0]
        keep.append(best)
        rest = order[1:]
        order = rest[iou(boxes[best][None], boxes[rest])[0] <= limit]
    if len(keep) == 0:
        return torch.empty((0,), dtype=torch.int64)
    return torch.stack(keep)


def noted(function: Callable[..., Any]) -> None:
    """As a library counts its calls."""
    assert callable(function)


def by_class(boxes: torch.Tensor, scores: torch.Tensor, labels: torch.Tensor, limit: float) -> torch.Tensor:
    """By its own name it is known inside, and each branch is a function of its own."""
    noted(by_class)
    if boxes.numel() > 24:
        return each_class(boxes, scores, labels, limit)
    return all_classes(boxes, scores, labels, limit)


def all_classes(boxes: torch.Tensor, scores: torch.Tensor, labels: torch.Tensor, limit: float) -> torch.Tensor:
    if boxes.numel() == 0:
        return torch.empty((0,), dtype=torch.int64)
    apart = labels.to(boxes) * (boxes.max() + 1)
    return suppressed(boxes + apart[:, None], scores, limit)


def each_class(boxes: torch.Tensor, scores: torch.Tensor, labels: torch.Tensor, limit: float) -> torch.Tensor:
    kept = torch.zeros_like(scores, dtype=torch.bool)
    for label in torch.unique(labels):
        places = torch.where(labels == label)[0]
        kept[places[scores[places] > scores[places].max() - limit]] = True
    places = torch.where(kept)[0]
    return places[scores[places].sort(descending=True)[1]]


class Suppressed(nn.Module):
    """Boxes with a score above a limit, the best of each class, few of them."""

    def forward(self, boxes: torch.Tensor, logits: torch.Tensor) -> dict[str, torch.Tensor]:
        scores, labels = logits.sigmoid().max(1)
        boxes = torch.cat([boxes[:, :2], boxes[:, :2] + boxes[:, 2:].abs()], 1)
        found = torch.where(scores > 0.5)[0]
        boxes, scores, labels = boxes[found], scores[found], labels[found]
        keep = by_class(boxes, scores, labels, 0.3)[:5]
        return {"boxes": boxes[keep], "scores": scores[keep], "labels": labels[keep]}


class Capped(nn.Module):
    """The best of each level, at most four, with the level's number."""

    def forward(self, boxes: torch.Tensor, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found, levels = [], []
        for level in range(3):
            scores = logits[:, level].sigmoid()
            kept = scores > 0.4
            places = torch.where(kept)[0]
            count = min(4, places.size(0))
            best, order = scores[kept].topk(count)
            found.append(torch.cat([boxes[places[order]], best[:, None]], 1))
            levels.append(torch.full((count,), level))
        return torch.cat(found), torch.cat(levels)


class PerClass(nn.Module):
    """A loop over classes that leaves out those with no box."""

    def forward(self, boxes: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        probabilities = logits.softmax(1)
        results = []
        for label in range(logits.shape[1]):
            places = torch.where(probabilities[:, label] > 0.4)[0]
            if len(places) == 0:
                continue
            chosen = boxes[places]
            numbers = torch.full((len(places), 1), float(label))
            results.append(torch.cat([chosen, probabilities[places, label][:, None], numbers], 1))
        if len(results) == 0:
            return torch.zeros((0, 6))
        return torch.cat(results)


class EmptyFirst(nn.Module):
    """A head that gives up early where there is nothing to see."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, boxes: torch.Tensor, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = boxes[logits.max(1).values > 0.5]
        if chosen.shape[0] == 0:
            return chosen.new_zeros((0, 3)), torch.zeros(())
        hidden = self.layer(chosen)
        return hidden - hidden.max(), hidden.mean()


class Levels(nn.Module):
    """Each box gets its numbers from the level that its area says."""

    def forward(self, boxes: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        levels = boxes.abs().prod(1).add(1).log2().floor().clamp(0, 2).to(torch.int64)
        result = torch.zeros((boxes.shape[0], 3), dtype=boxes.dtype)
        for level in range(3):
            places = torch.where(levels == level)[0]
            result[places] = boxes[places][:, :3] * logits[level, :3] + level
        return result


class Matched(nn.Module):
    """Pairs that chose each other, in chunks of one coordinate."""

    def forward(self, boxes: torch.Tensor, logits: torch.Tensor) -> tuple[torch.Tensor, ...]:
        likeness = boxes @ boxes.T + logits[:, :1]
        mutual = (likeness == likeness.amax(0)) & (likeness == likeness.amax(1, keepdim=True))
        one, other = torch.where(mutual)
        pairs = torch.stack([boxes[one], boxes[other]])
        first, second = pairs.chunk(2, dim=0)
        left, right = first.squeeze(0).chunk(2, dim=1)
        if left.shape[0] == 0:
            return torch.zeros(0, 2), torch.zeros(0, 2), second.squeeze(0)
        return left / left.abs().max(), right, second.squeeze(0)


def candidates(rows: int, level: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Boxes and logits; with a low level none is chosen."""
    return torch.randn(rows, 4) * 2, torch.randn(rows, 3) * 2 + level


HEADS: dict[str, Callable[[], nn.Module]] = {
    "suppressed": Suppressed,
    "capped": Capped,
    "per_class": PerClass,
    "empty_first": EmptyFirst,
    "levels": Levels,
    "matched": Matched,
}
