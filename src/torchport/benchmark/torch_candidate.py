"""A PyTorch model as a candidate beside engines: eager, or compiled by torch.compile."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from torchport.capture import models
from torchport.capture.sources import load_source
from torchport.capture.structure import output_tensors, signature_of
from torchport.inputs.binding import nested
from torchport.tensors import Array, to_numpy, to_torch

MODES = ("torch", "torch.compile")


def loaded_model(source: str, seed: int, *, trust: bool = False) -> Any:
    """Return the model of a source; a class that draws its weights gets the same ones each time."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    with contextlib.redirect_stdout(sys.stderr):  # what the user's file prints is no part of a result
        return load_source(source, trust=trust).model


def open_torch(
    source: str, mode: str, seed: int, threads: int | None, *, trust: bool = False
) -> tuple[Callable[[dict[str, Array]], list[Array]], dict[str, Any]]:
    """Return a function from inputs by name to outputs in order, and facts about it.

    Args:
        source: the model, as on the command line: ``model.py:Net``.
        mode: one of `MODES`.
        seed: for weights that the model draws, as in `torchport export`.
        threads: for torch to compute with; its own choice if None.
        trust: open files that run code when they are loaded.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    target = models.subject(loaded_model(source, seed, trust=trust)).target
    if isinstance(target, torch.nn.Module):
        target.eval()
    names = signature_of(target).parameters
    called = torch.compile(target) if mode == "torch.compile" else target

    def run(feeds: dict[str, Array]) -> list[Array]:
        tensors = {name: to_torch(array) for name, array in feeds.items()}
        by_name = all(name.split(".")[0] in names for name in tensors)
        with torch.no_grad():
            given = called(**nested(tensors)) if by_name else called(*tensors.values())
        return [to_numpy(tensor) for tensor in output_tensors(given)[1]]

    return run, {"version": torch.__version__, "findings": []}
