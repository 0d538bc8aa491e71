"""What can be asked of quantization: the scheme, how ranges are found, and how finely weights are scaled."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any

from torchport.engines.registry import DEFAULT
from torchport.errors import EngineMissingError, OptionError, did_you_mean

STATIC, DYNAMIC = "static-int8", "dynamic-int8"
SCHEMES: Mapping[str, str] = MappingProxyType(
    {
        STATIC: "weights and activations in int8, with ranges from calibration data",
        DYNAMIC: "weights in int8, activations in uint8 with ranges computed in each run; no convolutions",
    }
)
ONNXRUNTIME, NNCF = "onnxruntime", "nncf"

# By the way ranges are found: what can do it, the first by preference.
CALIBRATIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "min-max": (ONNXRUNTIME, NNCF),
        "percentile": (ONNXRUNTIME, NNCF),
        "entropy": (ONNXRUNTIME,),
        "mse": (NNCF,),
    }
)


@dataclasses.dataclass(frozen=True)
class Scheme:
    """How a model is quantized; plain data, which the quantizer's process is given.

    Attributes:
        name: one of `SCHEMES`.
        quantizer: what does the arithmetic, onnxruntime or nncf.
        calibration: how the range of an activation is found; empty where no data is needed.
        per_channel: each output channel of a weight has a scale of its own.
        symmetric: the zero of activations is at 0; None for the quantizer's own choice.
    """

    name: str
    quantizer: str
    calibration: str = ""
    per_channel: bool = True
    symmetric: bool | None = None

    @property
    def needs_data(self) -> bool:
        """Check that calibration data goes into the quantized model."""
        return bool(self.calibration)

    def __str__(self) -> str:
        parts = [self.calibration, "per channel" if self.per_channel else "per tensor"]
        parts += [] if self.symmetric is None else ["symmetric" if self.symmetric else "asymmetric"]
        return f"{self.name} by {self.quantizer} ({', '.join(filter(None, parts))})"

    @property
    def fields(self) -> dict[str, Any]:
        """Return what the model's metadata says of it."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value not in ("", None)}


def schemes_for(
    name: str, engine: str, *, calibration: str | None, per_channel: bool, symmetric: bool | None
) -> tuple[Scheme, ...]:
    """Return the schemes to try, the best guess first: several where the calibration is left open.

    Raises:
        OptionError: there is no such scheme or calibration, or they do not go together.
        EngineMissingError: what has to do the arithmetic is not installed.
    """
    if name not in SCHEMES:
        hint = did_you_mean(name, SCHEMES, f"one of {', '.join(SCHEMES)}", most=1)
        raise OptionError(f"there is no scheme '{name}'", where=f"--scheme {name}", next_step=hint)
    if name == DYNAMIC:
        _check_alone(name, calibration, symmetric)
        return (Scheme(name, ONNXRUNTIME, per_channel=per_channel),)
    if calibration is not None and calibration not in CALIBRATIONS:
        hint = did_you_mean(calibration, CALIBRATIONS, f"one of {', '.join(CALIBRATIONS)}", most=1)
        raise OptionError(
            f"there is no calibration '{calibration}'", where=f"--calibration {calibration}", next_step=hint
        )
    wanted = (calibration,) if calibration is not None else ("min-max", "percentile")
    return tuple(Scheme(name, _quantizer(kind, engine), kind, per_channel, symmetric) for kind in wanted)


def _check_alone(name: str, calibration: str | None, symmetric: bool | None) -> None:
    given = [("--calibration", calibration), ("--symmetric", symmetric)]
    if unused := [option for option, value in given if value is not None]:
        raise OptionError(
            f"{name} computes the ranges of activations in each run: {unused[0]} means nothing to it",
            where=f"--scheme {name} {unused[0]}",
            next_step=f"leave {unused[0]} out, or choose --scheme {STATIC}",
        )


def _quantizer(calibration: str, engine: str) -> str:
    """Return what quantizes for an engine: by measurement ONNX Runtime's for itself, nncf for the others."""
    able = CALIBRATIONS[calibration]
    wished = ONNXRUNTIME if engine == DEFAULT else NNCF
    found = wished if wished in able else able[0]
    if found == NNCF and find_spec("nncf") is None:
        if ONNXRUNTIME in able:
            return ONNXRUNTIME
        raise EngineMissingError(
            f"the calibration '{calibration}' is nncf's, which is not installed",
            where=f"--calibration {calibration}",
            next_step='pip install "torchport[openvino]"',
        )
    return found


_VNNI = ("avx512_vnni", "avx_vnni", "asimddp")


def has_fast_int8(flags: frozenset[str]) -> bool:
    """Check that the CPU multiplies and adds int8 in one instruction; without it sums of int8 may overflow."""
    return not flags or any(flag in flags for flag in (*_VNNI, "amx_int8"))


def expected_gain(scheme: Scheme, engine: str, flags: frozenset[str]) -> str:
    """Return what this CPU can gain from a scheme, before anything is measured."""
    if not flags:
        return "the system does not tell what this CPU has; the measurement shows what is gained"
    if scheme.name == DYNAMIC and engine != DEFAULT:
        return f"{engine} has no fast kernels for dynamic int8 as ONNX Runtime writes it: slower, as a rule"
    if "amx_int8" in flags:
        return "AMX multiplies int8 at up to 8 times the rate of float32 in AVX-512"
    if any(flag in flags for flag in _VNNI):
        dynamic = "; matrices only, and each run computes the ranges" if scheme.name == DYNAMIC else ""
        return f"VNNI multiplies int8 at up to 4 times the rate of float32{dynamic}"
    return "this CPU has no VNNI or AMX: int8 gains little, and weights get 7 bits so that sums do not overflow"
