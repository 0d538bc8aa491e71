"""torch.nn.functional.ctc_loss

    labels    blank, target 1, blank, target 2, ..., blank
    alpha[s] at t = log(e^alpha[s] + e^alpha[s - 1] + e^alpha[s - 2]) at t - 1, plus log_probs[t, label s];
                    alpha[s - 2] only if label s is not the same as label s - 2
    loss      -log(e^alpha[2L] + e^alpha[2L - 1]) at the last t of the input, L the length of the target

One loop over t for the whole batch; a shorter input keeps its alpha from its end on. PyTorch's own has no form that can
be captured.

Source of truth: ATen's native/LossCTC.cpp.
"""

from __future__ import annotations

from typing import Any

import torch

from torchport.operators.library.loops import repeated


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
