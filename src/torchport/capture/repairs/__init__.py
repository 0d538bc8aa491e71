"""The table of repairs: known failures of the exporter, and known differences between a model and its capture.

Each repair stands in the file of its subject. Repairs in `ALWAYS` concern differences that no error announces.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from torchport.capture.repairs.cast_layers import cast_layers
from torchport.capture.repairs.causal_masks import causal_masks
from torchport.capture.repairs.fake_quantizers import fake_quantizers
from torchport.capture.repairs.flex_attention import flex_attention
from torchport.capture.repairs.gradient_switches import gradient_switches
from torchport.capture.repairs.inner_wrappers import inner_wrappers
from torchport.capture.repairs.one_hot import one_hot
from torchport.capture.repairs.padded_encoder import padded_encoder
from torchport.capture.repairs.quantized import quantized
from torchport.capture.repairs.recurrent import recurrent
from torchport.capture.repairs.repair import CaptureRepair, ProgramRepair
from torchport.capture.repairs.settled_slices import settled_slices
from torchport.capture.repairs.shapes_of_operators import shapes_of_operators
from torchport.capture.repairs.spaced import spaced
from torchport.capture.repairs.strided_views import strided_views
from torchport.capture.repairs.symbolic_sizes import symbolic_sizes
from torchport.capture.repairs.value_checks import value_checks
from torchport.capture.repairs.views_as_reshapes import views_as_reshapes
from torchport.capture.repairs.weights_alone import weights_alone
from torchport.capture.repairs.written_places import written_places
from torchport.operators import registration
from torchport.operators.registration import Registered

ALWAYS: tuple[CaptureRepair, ...] = (
    *(inner_wrappers, padded_encoder, causal_masks, flex_attention, recurrent, strided_views, fake_quantizers),
)
AFTER_FAILED_CAPTURE: tuple[CaptureRepair, ...] = (
    *(views_as_reshapes, symbolic_sizes, quantized, written_places, one_hot, cast_layers, gradient_switches),
    *(shapes_of_operators, value_checks, spaced),
)
AFTER_FAILED_TRANSLATION: tuple[ProgramRepair, ...] = (settled_slices, weights_alone)


def registered() -> tuple[Registered, ...]:
    """Return the functions of torch that repairs replace, by name."""
    return registration.registered_as("repair")


@contextlib.contextmanager
def repaired(target: Any, known: tuple[CaptureRepair, ...] = ()) -> Iterator[list[str]]:
    """Every repair that applies to `target`, for the time of a capture.

    Args:
        target: the user's model.
        known: repairs that an earlier failure asked for.

    Yields:
        The names of those that had something to do; they are there once the capture is over.
    """
    applied: list[str] = []
    with contextlib.ExitStack() as stack:
        entered = [(r.name, stack.enter_context(r.active(target))) for r in (*ALWAYS, *known)]
        yield applied
    applied += [name for name, had_to_do in entered if had_to_do]


def for_failed_capture(error: Exception, used: tuple[CaptureRepair, ...]) -> CaptureRepair | None:
    """A repair that knows this error and was not used yet."""
    return next((r for r in AFTER_FAILED_CAPTURE if r not in used and r.knows(error)), None)


def for_failed_translation(
    program: torch.export.ExportedProgram, error: Exception, used: list[str]
) -> torch.export.ExportedProgram | None:
    """Return the repaired program, if a repair knows the error; its name joins `used`."""
    for repair in AFTER_FAILED_TRANSLATION:
        if repair.name not in used:
            repaired = repair.repair(program, error)
            if repaired is not None:
                used.append(repair.name)
                return repaired
    return None
