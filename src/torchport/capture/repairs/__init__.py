"""Known failures of the exporter, and known differences between a model and its capture, each mended in one file.

A repair is a module with a `NAME`, which an attempt shows, and one of these:

- `repaired(target)`: a context manager that holds while the model is captured and leaves the model as it was. It gives
  something that is true, at the end, if it had anything to do. For silent differences: always on.
- `repaired(target)` and `knows(error)`: the same, but entered only after a capture failed with an error it knows.
- `mend(program, error)`: a program in place of one whose translation failed with an error it knows, else None.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from torchport.capture.repairs import (
    cast_layers,
    causal_masks,
    fake_quantizers,
    flex_attention,
    gradient_switches,
    inner_wrappers,
    one_hot,
    padded_encoder,
    quantized,
    recurrent,
    settled_slices,
    shapes_of_operators,
    spaced,
    strided_views,
    symbolic_sizes,
    value_checks,
    views_as_reshapes,
    weights_alone,
    written_places,
)
from torchport.operators import registering
from torchport.operators.registering import Registered

ALWAYS: tuple[Any, ...] = (
    *(inner_wrappers, padded_encoder, causal_masks, flex_attention, recurrent, strided_views, fake_quantizers),
)
AFTER_FAILED_CAPTURE: tuple[Any, ...] = (
    *(views_as_reshapes, symbolic_sizes, quantized, written_places, one_hot, cast_layers, gradient_switches),
    *(shapes_of_operators, value_checks, spaced),
)
AFTER_FAILED_TRANSLATION: tuple[Any, ...] = (settled_slices, weights_alone)


def registered() -> tuple[Registered, ...]:
    """Return the functions of torch that repairs replace, by name."""
    repairs = (*ALWAYS, *AFTER_FAILED_CAPTURE, *AFTER_FAILED_TRANSLATION)
    return tuple(entry for repair in repairs for entry in registering.registered_in(repair.__name__))


@contextlib.contextmanager
def repaired(target: Any, known: tuple[Any, ...] = ()) -> Iterator[list[str]]:
    """Every repair that applies to `target`, for the time of a capture.

    Args:
        target: the user's model.
        known: repairs that an earlier failure asked for.

    Yields:
        The names of those that had something to do; they are there once the capture is over.
    """
    applied: list[str] = []
    with contextlib.ExitStack() as stack:
        entered = [(r.NAME, stack.enter_context(r.repaired(target))) for r in (*ALWAYS, *known)]
        yield applied
    applied += [name for name, had_to_do in entered if had_to_do]


def for_failed_capture(error: Exception, used: tuple[Any, ...]) -> Any | None:
    """A repair that knows this error and was not used yet."""
    return next((r for r in AFTER_FAILED_CAPTURE if r not in used and r.knows(error)), None)


def for_failed_translation(
    program: torch.export.ExportedProgram, error: Exception, used: list[str]
) -> torch.export.ExportedProgram | None:
    """The mended program, if a repair knows the error; its name joins `used`."""
    for repair in AFTER_FAILED_TRANSLATION:
        if repair.NAME not in used:
            mended = repair.mend(program, error)
            if mended is not None:
                used.append(repair.NAME)
                return mended
    return None
