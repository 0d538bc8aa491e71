"""The table of repairs: known failures of the exporter, and known differences between a model and its capture.

Each repair stands in the file of its subject. Repairs in `ALWAYS` concern differences that no error announces.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from torchport.capture.repairs import value_dependent
from torchport.capture.repairs.attention import causal_masks, flex_attention, padded_encoder
from torchport.capture.repairs.models import (
    cast_layers,
    gradient_switches,
    gradients,
    inner_wrappers,
    instance_norms,
    shapes_of_operators,
    sparse_functions,
    sparse_weights,
    weights_alone,
)
from torchport.capture.repairs.quantized_layers import fake_quantizers, quantized
from torchport.capture.repairs.recurrent import recurrent
from torchport.capture.repairs.repair import CaptureRepair, ProgramRepair
from torchport.capture.repairs.symbolic_sizes import symbolic_sizes
from torchport.capture.repairs.value_dependent import one_hot, value_checks, varying_sizes, written_places
from torchport.capture.repairs.views import settled_slices, strided_views, views_as_reshapes
from torchport.errors import MissingPartError
from torchport.operators.registration import Registered
from torchport.torch_compat import parts

ALWAYS: tuple[CaptureRepair, ...] = (
    *(inner_wrappers, padded_encoder, causal_masks, flex_attention, recurrent, strided_views, fake_quantizers),
    *(instance_norms, sparse_weights),
)
WITH_SIZES: tuple[CaptureRepair, ...] = (varying_sizes,)  # for captures by torch.export: a trace has none that vary
AFTER_FAILED_CAPTURE: tuple[CaptureRepair, ...] = (
    *(views_as_reshapes, symbolic_sizes, quantized, written_places, one_hot, cast_layers, gradient_switches),
    *(shapes_of_operators, value_checks, sparse_functions, gradients),
)
AFTER_FAILED_TRANSLATION: tuple[ProgramRepair, ...] = (settled_slices, weights_alone)


def registered() -> tuple[Registered, ...]:
    """Return the functions of torch that repairs replace, by name."""
    return value_dependent.registered()


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
        entered = [(r.name, _entered(stack, r, target)) for r in (*ALWAYS, *known)]
        yield applied
    applied += [name for name, had_to_do in entered if had_to_do]


def _entered(stack: contextlib.ExitStack, repair: CaptureRepair, target: Any) -> Any:
    """Make a repair active. One that needs what is not there is off, and the export gets a finding."""
    try:
        return stack.enter_context(repair.active(target))
    except MissingPartError as error:
        parts.note(error.what)
        return False


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
