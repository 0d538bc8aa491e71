"""The PyTorch model as the reference: arrays in, arrays out, its state restored after each call."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from torchport.capture.state import Snapshot
from torchport.capture.structure import Call, output_tensors
from torchport.tensors import Array, as_pairs, to_numpy, to_torch


class Reference:
    """Asks the PyTorch model. Raises whatever the model raises."""

    def __init__(self, call: Call, snapshot: Snapshot) -> None:
        self._call = call
        self._snapshot = snapshot
        self._devices = [t.device for t in call.tensors]
        self.output_names: list[str] = []
        self.complex_outputs: list[str] = []

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        # Copies, because a model may write to its inputs.
        tensors = [to_torch(np.array(a)).to(d) for a, d in zip(arrays, self._devices, strict=True)]
        try:
            with torch.no_grad():
                self.output_names, given = output_tensors(self._call(*tensors))
                outputs = [o.clone() if self._snapshot.holds(o) else o for o in given]
        finally:
            self._snapshot.restore()
        self.complex_outputs = [n for n, o in zip(self.output_names, outputs, strict=True) if o.is_complex()]
        return [as_pairs(to_numpy(o)) for o in outputs]
