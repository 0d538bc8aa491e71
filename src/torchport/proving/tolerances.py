"""How far apart two answers may be, by dtype.

The limit for one number is ``rtol * |reference| + atol * scale``, where the scale is the reference output's largest
magnitude: an output of millionths is held to millionths, one of thousands to thousands. See `scales` for masks.
"""

from __future__ import annotations

import dataclasses

from torchport.tensors import FLOATS


@dataclasses.dataclass(frozen=True)
class Tolerance:
    rtol: float
    atol: float


DEFAULTS = {
    "float64": Tolerance(1e-7, 1e-9),
    "float32": Tolerance(1e-3, 1e-5),
    "float16": Tolerance(1e-2, 1e-3),
    "bfloat16": Tolerance(2e-2, 1e-2),
}
EXACT = Tolerance(0.0, 0.0)

# A reference that is all zeros (a difference that cancels) has no magnitude to scale by: rounding noise of this part
# of `atol` is let through, which is 1e-8 for float32.
FLOOR = 1e-3


def tolerance(dtype: str, precision: str | None = None) -> Tolerance:
    """The tolerance for an output of `dtype`.

    Args:
        dtype: the output's dtype; integers and booleans are exact.
        precision: the coarsest float dtype the model computes in. A float32 output of a float16 model is only as
            good as float16.
    """
    real = {"complex64": "float32", "complex128": "float64"}.get(dtype, dtype)
    if real.startswith("float8"):
        real = "bfloat16"
    if real not in FLOATS:
        return EXACT
    own = DEFAULTS[real]
    floor = DEFAULTS.get(precision or real, own)
    return Tolerance(max(own.rtol, floor.rtol), max(own.atol, floor.atol))
