"""The difference of a candidate's outputs from those of the model as given, and the limits of it.

Without a tolerance the limits are those of a proof, by dtype. With one they are those of `tp.quantize`, summed over
all samples.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from torchport.benchmark.reference import Judgment, Reference
from torchport.optimization.accuracy import Accuracy, Limits, OutputSums, accuracy_of
from torchport.tensors import Array

EXACT = "float32"  # the tolerance that allows what a proof allows


def read_tolerance(given: Any) -> Limits | None:
    """Return the limits that a user gives, as for `tp.quantize`; None for those of a proof.

    Raises:
        OptionError: they cannot be meant.
    """
    return None if given is None or given == EXACT else Limits.read(given, has_metric=False)


class Agreement:
    """Adds up how far a candidate's outputs are from those of the model as given, sample by sample.

    Example:
        >>> agreement = Agreement(("logits",))
        >>> agreement.add("s0", [np.float32([1, 0])], [np.float32([1, 0])])
        >>> agreement.accuracy(Limits()).noise
        0.0
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._sums = {name: OutputSums() for name in names}
        self._samples = 0
        self._problem = ""

    def add(self, sample: str, wanted: Sequence[Array], given: Sequence[Array]) -> None:
        """Take the outputs of one sample."""
        self._samples += 1
        if len(wanted) != len(given):
            self._problem = f"it gives {len(given)} outputs instead of {len(wanted)}"
            return
        for sums, want, got in zip(self._sums.values(), wanted, given, strict=True):
            sums.add(want, got, sample)

    def accuracy(self, limits: Limits) -> Accuracy:
        """Return the figures over all samples, and what is beyond the limits."""
        found = accuracy_of(self._sums, limits, samples=self._samples)
        return dataclasses.replace(found, problem=self._problem or found.problem)


@dataclasses.dataclass(frozen=True)
class TolerantReference(Reference):
    """Outputs that are taken as right within limits.

    Attributes:
        allowed: None for the limits of a proof.
    """

    random: Mapping[str, str] = dataclasses.field(default_factory=dict)
    allowed: Limits | None = None

    def judge(self, outputs: Sequence[Array]) -> Judgment:
        strict = super().judge(outputs)
        if self.allowed is None:
            return strict
        agreement = Agreement(self.names)
        agreement.add("this one", self.outputs, outputs)
        problem = agreement.accuracy(self.allowed).problem
        return Judgment("wrong" if problem else "right", strict.max_abs, strict.max_rel, problem)
