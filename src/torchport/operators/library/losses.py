"""Cross entropy, linear cross entropy and CTC loss."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from torchport.operators.composition import only_where
from torchport.operators.library.linalg_factorizations import repeated
from torchport.operators.registration import composes, replaces

# aten::cross_entropy_loss of one sample without a batch, with probabilities as target, or with label smoothing
#
#     loss = -sum over the classes of w · q · log_softmax(x), q = (1 - s) · target + s / classes
#
# A class as target is one of probability one; then the mean is over the weights of the targets, without the ignored
# ones, and else over the samples. Torch's translation, SoftmaxCrossEntropyLoss, has no such targets and leaves s out.
#
# Source of truth: ATen's native/LossNLL.cpp.

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


# torch_nn::_linear_cross_entropy_batch_chunked, torch_nn::_linear_cross_entropy_batch_chunked_no_reduction
#
#     cross_entropy(x · Wᵀ + b, target)
#
# What torch.nn.functional.linear_cross_entropy calls when it goes through the batch in chunks, which saves memory in
# training and changes nothing here. The first also gives the gradients that its backward pass scales; nobody else sees
# them, and they are left zero.
#
# Source of truth: torch/nn/modules/linear_cross_entropy.py.

_DEFINED_IN = "torch.nn.modules.linear_cross_entropy"


@composes("torch_nn::_linear_cross_entropy_batch_chunked.default", defined_in=_DEFINED_IN)
def chunked(
    input: Any,
    linear_weight: Any,
    target: Any,
    linear_bias: Any,
    weight: Any,
    reduction: str,
    ignore_index: int,
    label_smoothing: float,
    batch_chunk_size: int,
    acc_policy: str,
    acc_dtype: torch.dtype,
    allow_retain_graph: bool,
    compute_input_grad: bool,
    compute_linear_weight_grad: bool,
    compute_linear_bias_grad: bool,
) -> tuple[Any, Any, Any, Any]:
    loss = _loss(input, linear_weight, target, linear_bias, weight, reduction, ignore_index, label_smoothing)
    of_input = input.shape if compute_input_grad else (0, 0)
    of_weight = linear_weight.shape if compute_linear_weight_grad else (0, 0)
    of_bias = linear_weight.shape[:-1] if compute_linear_bias_grad else (0,)
    return loss, input.new_zeros(of_input), input.new_zeros(of_weight), input.new_zeros(of_bias)


@composes("torch_nn::_linear_cross_entropy_batch_chunked_no_reduction.default", defined_in=_DEFINED_IN)
def unreduced(
    input: Any,
    linear_weight: Any,
    target: Any,
    linear_bias: Any,
    weight: Any,
    ignore_index: int,
    batch_chunk_size: int,
    acc_policy: str,
    acc_dtype: torch.dtype,
) -> Any:
    return _loss(input, linear_weight, target, linear_bias, weight, "none", ignore_index, 0.0)


def _loss(
    x: Any, linear: Any, target: Any, bias: Any, weight: Any, reduction: str, ignored: int, smoothing: float
) -> Any:
    logits = functional.linear(x, linear.to(x.dtype), None if bias is None else bias.to(x.dtype))
    return functional.cross_entropy(
        logits, target, weight, ignore_index=ignored, reduction=reduction, label_smoothing=smoothing
    )


# torch.nn.functional.ctc_loss
#
#     labels    blank, target 1, blank, target 2, ..., blank
#     alpha[s] at t = log(e^alpha[s] + e^alpha[s - 1] + e^alpha[s - 2]) at t - 1, plus log_probs[t, label s];
#                     alpha[s - 2] only if label s is not the same as label s - 2
#     loss      -log(e^alpha[2L] + e^alpha[2L - 1]) at the last t of the input, L the length of the target
#
# One loop over t for the whole batch; a shorter input keeps its alpha from its end on. PyTorch's own has no form that
# can be captured.
#
# Source of truth: ATen's native/LossCTC.cpp.


@replaces("torch.nn.functional.ctc_loss")
def ctc_loss(
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Any:
    alone = log_probs.dim() == 2
    if alone:
        log_probs, targets = log_probs.unsqueeze(1), targets.reshape(1, -1)
    device = log_probs.device
    given, wanted = (
        torch.as_tensor(lengths, device=device).long().reshape(-1) for lengths in (input_lengths, target_lengths)
    )
    labels = _labels(targets.long(), wanted, blank)
    emitted = log_probs.gather(2, labels.expand(log_probs.shape[0], *labels.shape))
    loss = -_log_likelihood(emitted, _may_skip(labels), given, wanted)
    if zero_infinity:
        loss = torch.where(torch.isinf(loss), torch.zeros_like(loss), loss)
    if reduction == "mean":
        return (loss / wanted.clamp_min(1).to(loss.dtype)).mean()
    if reduction == "sum":
        return loss.sum()
    return loss.squeeze(0) if alone else loss


def _labels(targets: Any, lengths: Any, blank: int) -> Any:
    """One row a sample, blanks in between; targets that follow each other in one row are set apart."""
    if targets.dim() == 1:
        start = lengths.cumsum(0) - lengths
        places = start.unsqueeze(1) + torch.arange(targets.shape[0], device=targets.device)
        targets = targets[places.clamp(max=targets.shape[0] - 1)]
    pairs = torch.stack([torch.full_like(targets, blank), targets], -1).flatten(1)
    return torch.cat([pairs, targets.new_full((targets.shape[0], 1), blank)], 1)


def _may_skip(labels: Any) -> Any:
    before = torch.cat([labels[:, :2], labels[:, :-2]], 1)[:, : labels.shape[1]]
    return labels != before


def _log_likelihood(emitted: Any, may_skip: Any, given: Any, wanted: Any) -> Any:
    place = torch.arange(emitted.shape[2], device=emitted.device)
    nothing = torch.full_like(emitted[0], -torch.inf)
    begun = torch.where((place < 2) & (place <= 2 * wanted.unsqueeze(1)), emitted[0], nothing)

    def step(k: Any, alpha: Any, emitted: Any, may_skip: Any, given: Any) -> tuple[Any, ...]:
        after = _step(alpha, emitted.index_select(0, (k + 1).reshape(1)).squeeze(0), may_skip)
        return (torch.where((k + 1 < given).unsqueeze(1), after, alpha),)

    (alpha,) = repeated(emitted.shape[0] - 1, step, (begun,), (emitted, may_skip, given))
    last = alpha.gather(1, (2 * wanted).unsqueeze(1))
    label = alpha.gather(1, (2 * wanted - 1).clamp_min(0).unsqueeze(1))
    label = torch.where(wanted.unsqueeze(1) > 0, label, torch.full_like(label, -torch.inf))
    likelihood = _log_sum(torch.cat([last, label], 1).unsqueeze(0).transpose(0, 2)).reshape(-1)
    empty = torch.where(wanted == 0, 0.0, -torch.inf).to(likelihood.dtype)
    return torch.where(given == 0, empty, likelihood)


def _step(alpha: Any, emitted: Any, may_skip: Any) -> Any:
    count = alpha.shape[1]
    nothing = torch.full_like(alpha[:, :1], -torch.inf)
    one = torch.cat([nothing, alpha], 1)[:, :count]
    two = torch.cat([nothing, nothing, alpha], 1)[:, :count]
    two = torch.where(may_skip, two, torch.full_like(two, -torch.inf))
    return _log_sum(torch.stack([alpha, one, two])) + emitted


def _log_sum(x: Any) -> Any:
    """log of the sum of the exponentials along the first axis; minus infinity of nothing but that."""
    largest = x.amax(0)
    shift = torch.where(torch.isinf(largest), torch.zeros_like(largest), largest)
    return torch.exp(x - shift).sum(0).log() + shift


# aten::multilabel_margin_loss
#
#     Σ over targets j and others i of max(0, 1 - x[j] + x[i]) / number of classes; targets end at the first below zero
#
# Torch's own form in other operators counts classes behind that end as targets.
#
# Source of truth: ATen's native/LossMultiLabelMargin.cpp.


@composes("aten::multilabel_margin_loss.default")
def multilabel_margin_loss(self: Any, target: Any, reduction: int = 1) -> Any:
    return _multilabel_margins(self, target, reduction)[0]


@composes("aten::multilabel_margin_loss_forward.default")
def multilabel_margin_loss_forward(self: Any, target: Any, reduction: int) -> Any:
    return _multilabel_margins(self, target, reduction)


def _multilabel_margins(x: Any, target: Any, reduction: int) -> tuple[Any, Any]:
    """The loss, and which classes are targets."""
    classes = x.shape[-1]
    valid = (target < 0).to(torch.int64).cumsum(-1) == 0
    places = torch.where(valid, target, 0)
    named = (places.unsqueeze(-1) == torch.arange(classes, device=x.device)) & valid.unsqueeze(-1)
    is_target = named.to(torch.int64).sum(-2) > 0
    margins = (1 - x.gather(-1, places).unsqueeze(-1) + x.unsqueeze(-2)).clamp(min=0)
    counted = valid.unsqueeze(-1) & ~is_target.unsqueeze(-2)
    loss = torch.where(counted, margins, 0.0).sum((-2, -1)) / classes
    reduced = loss if reduction == 0 else loss.mean() if reduction == 1 else loss.sum()
    return reduced, is_target.to(x.dtype)
