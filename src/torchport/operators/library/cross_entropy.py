"""aten::cross_entropy_loss of one sample without a batch, with probabilities as target, or with label smoothing

    loss = -sum over the classes of w · q · log_softmax(x), q = (1 - s) · target + s / classes

A class as target is one of probability one; then the mean is over the weights of the targets, without the ignored ones,
and else over the samples. Torch's translation, SoftmaxCrossEntropyLoss, has no such targets and leaves s out.

Source of truth: ATen's native/LossNLL.cpp.
"""

from __future__ import annotations

from typing import Any

import torch

from torchport.operators.composing import only_where
from torchport.operators.registering import composes

MEAN, SUM = 1, 2


def _applies(
    self: Any,
    target: Any,
    weight: Any = None,
    reduction: int = MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> bool:
    return bool(self.dim() == 1 or target.is_floating_point() or label_smoothing != 0.0)


@composes("aten::cross_entropy_loss.default")
@only_where(_applies)
def cross_entropy(
    self: Any,
    target: Any,
    weight: Any = None,
    reduction: int = MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Any:
    alone = self.dim() == 1
    x, target = (self.unsqueeze(0), target.unsqueeze(0)) if alone else (self, target)
    log = torch.log_softmax(x, 1)
    each = weight.reshape(-1, *[1] * (x.dim() - 2)) if weight is not None else None
    if target.is_floating_point():
        chances = target * (1 - label_smoothing) + label_smoothing / x.shape[1]
        loss = -(log * chances if each is None else log * chances * each).sum(1)
        divisor: Any = torch.ones_like(loss).sum()
    else:
        loss, divisor = _of_classes(log, target, weight, each, ignore_index, label_smoothing)
    if reduction == SUM:
        return loss.sum()
    if reduction == MEAN:
        return loss.sum() / divisor
    return loss.squeeze(0) if alone else loss


def _of_classes(log: Any, target: Any, weight: Any, each: Any, ignored: int, smoothing: float) -> tuple[Any, Any]:
    """The loss of each sample, and the sum of the weights of their classes."""
    counts = target != ignored
    target = torch.where(counts, target, torch.zeros_like(target))
    nothing = torch.zeros_like(log.select(1, 0))
    own = torch.ones_like(nothing) if weight is None else weight[target]
    loss = -log.gather(1, target.unsqueeze(1)).squeeze(1) * own
    if smoothing:
        spread = -(log if each is None else log * each).sum(1)
        loss = loss * (1 - smoothing) + spread * (smoothing / log.shape[1])
    return torch.where(counts, loss, nothing), torch.where(counts, own, nothing).sum()
