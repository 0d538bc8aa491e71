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
INT8_WEIGHTS, INT4_WEIGHTS, FLOAT16 = "int8-weights", "int4-weights", "float16"
SCHEMES: Mapping[str, str] = MappingProxyType(
    {
        STATIC: "weights and activations in int8, with ranges from calibration data",
        DYNAMIC: "weights in int8, activations in uint8 with ranges computed in each run; no convolutions",
        INT8_WEIGHTS: "matrices of weights in int8, activations in float",
        INT4_WEIGHTS: "matrices of weights in int4, activations in float",
        FLOAT16: "all numbers in float16, but inputs and outputs",
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

METHODS = ("rtn", "hqq", "gptq")  # of rounding int4 weights
_BLOCKS = (16, 32, 64, 128, 256)
_BLOCK = {INT8_WEIGHTS: 128, INT4_WEIGHTS: 32}  # by measurement: fast for int8, precise for int4
_OLDEST = 13  # the first opset with a scale for each channel
_BLOCKS_FROM = 21  # the first opset with scales for blocks, and with int4


@dataclasses.dataclass(frozen=True)
class Scheme:
    """How a model is quantized; plain data, which the quantizer's process is given.

    Attributes:
        name: one of `SCHEMES`.
        quantizer: what does the arithmetic, onnxruntime or nncf.
        calibration: how the range of an activation is found; empty where no data is needed.
        per_channel: each output channel of a weight has a scale of its own.
        symmetric: the zero of activations is at 0, of weights where only these are quantized; None for the
            quantizer's own choice.
        block: the number of weights that share a scale; 0 where whole channels do.
        method: how weights are rounded to int4.
    """

    name: str
    quantizer: str
    calibration: str = ""
    per_channel: bool = True
    symmetric: bool | None = None
    block: int = 0
    method: str = ""

    @property
    def bits(self) -> int:
        """Return the bits of a weight."""
        return {INT4_WEIGHTS: 4, FLOAT16: 16}.get(self.name, 8)

    @property
    def is_for_speed(self) -> bool:
        """Check that a model of this scheme is worth nothing if it is slower; the others are smaller first of all."""
        return self.name in (STATIC, DYNAMIC)

    @property
    def needs_data(self) -> bool:
        """Check that calibration data goes into the quantized model."""
        return bool(self.calibration) or self.method == "gptq"

    @property
    def opset(self) -> int:
        """Return the oldest opset that can hold the quantized model."""
        return _BLOCKS_FROM if self.quantizer == NNCF and self.bits == 4 else _OLDEST

    def __str__(self) -> str:
        if self.name == FLOAT16:
            return self.name
        scales = f"blocks of {self.block}" if self.block else "per channel" if self.per_channel else "per tensor"
        parts = [self.calibration, self.method, scales]
        parts += [] if self.symmetric is None else ["symmetric" if self.symmetric else "asymmetric"]
        return f"{self.name} by {self.quantizer} ({', '.join(filter(None, parts))})"

    @property
    def fields(self) -> dict[str, Any]:
        """Return what the model's metadata says of it."""
        entries = dataclasses.asdict(self)
        return {
            name: value for name, value in entries.items() if value not in ("", None) and (value or name != "block")
        }


@dataclasses.dataclass(frozen=True)
class Wishes:
    """What the caller asks beside the scheme's name; None where nothing was asked."""

    calibration: str | None = None
    per_channel: bool = True
    symmetric: bool | None = None
    block: int | None = None
    method: str | None = None

    def check(self, scheme: str) -> None:
        """Check that each can be meant with this scheme.

        Raises:
            OptionError: one cannot.
        """
        taken: dict[str, tuple[str, ...]] = {
            STATIC: ("calibration", "symmetric"),
            INT8_WEIGHTS: ("symmetric", "block"),
            INT4_WEIGHTS: ("symmetric", "block", "method"),
        }
        for name in ("calibration", "symmetric", "block", "method"):
            if getattr(self, name) is not None and name not in taken.get(scheme, ()):
                raise OptionError(
                    f"--{name} means nothing to {scheme}: {SCHEMES[scheme]}",
                    where=f"--scheme {scheme} --{name}",
                    next_step=f"leave --{name} out, or choose another --scheme: {', '.join(SCHEMES)}",
                )
        for name, value, known in (
            ("calibration", self.calibration, CALIBRATIONS),
            ("method", self.method, METHODS),
            ("block", self.block, _BLOCKS),
        ):
            if value is not None and value not in known:
                words = list(map(str, known))
                hint = did_you_mean(str(value), words, f"one of {', '.join(words)}", most=1)
                raise OptionError(f"there is no {name} '{value}'", where=f"--{name} {value}", next_step=hint)


def schemes_for(name: str, engine: str, wishes: Wishes) -> tuple[Scheme, ...]:
    """Return the schemes to try, the best guess first: several where the calibration is left open.

    Raises:
        OptionError: there is no such scheme, or what is asked does not go with it.
        EngineMissingError: what has to do the arithmetic is not installed.
    """
    if name == "bfloat16":
        raise OptionError(
            "no engine here has kernels for bfloat16 files on a CPU",
            where="--scheme bfloat16",
            next_step="OpenVINO computes float32 files in bfloat16: --engine openvino --option precision=bf16; "
            "`torchport bench` shows what it gains",
        )
    if name not in SCHEMES:
        hint = did_you_mean(name, SCHEMES, f"one of {', '.join(SCHEMES)}", most=1)
        raise OptionError(f"there is no scheme '{name}'", where=f"--scheme {name}", next_step=hint)
    wishes.check(name)
    if name in (DYNAMIC, FLOAT16):
        return (Scheme(name, ONNXRUNTIME, per_channel=wishes.per_channel),)
    if name in _BLOCK:
        return (_weights_only(name, engine, wishes),)
    wanted = (wishes.calibration,) if wishes.calibration is not None else ("min-max", "percentile")
    return tuple(Scheme(name, _quantizer(kind, engine), kind, wishes.per_channel, wishes.symmetric) for kind in wanted)


def _weights_only(name: str, engine: str, wishes: Wishes) -> Scheme:
    """Return the scheme for an engine: ONNX Runtime has an operator of its own, the others read the standard's."""
    method = wishes.method or "rtn"
    quantizer = ONNXRUNTIME if engine == DEFAULT else NNCF
    if quantizer == NNCF:
        _check_nncf(f"--scheme {name} --engine {engine}")
        if method != "rtn":
            raise OptionError(
                f"--method {method} makes an operator that only ONNX Runtime has",
                where=f"--method {method} --engine {engine}",
                next_step=f"leave --method out, or quantize for {DEFAULT}",
            )
    block = (wishes.block or _BLOCK[name]) if quantizer == ONNXRUNTIME or name == INT4_WEIGHTS else 0
    return Scheme(name, quantizer, symmetric=wishes.symmetric, block=block, method=method)


def _quantizer(calibration: str, engine: str) -> str:
    """Return what quantizes for an engine: by measurement ONNX Runtime's for itself, nncf for the others."""
    able = CALIBRATIONS[calibration]
    wished = ONNXRUNTIME if engine == DEFAULT else NNCF
    found = wished if wished in able else able[0]
    if found == NNCF and ONNXRUNTIME in able and find_spec("nncf") is None:
        return ONNXRUNTIME
    if found == NNCF:
        _check_nncf(f"--calibration {calibration}")
    return found


def _check_nncf(where: str) -> None:
    if find_spec("nncf") is None:
        raise EngineMissingError(
            "this needs nncf, which is not installed", where=where, next_step='pip install "torchport[openvino]"'
        )


_VNNI = ("avx512_vnni", "avx_vnni", "asimddp")


def has_fast_int8(flags: frozenset[str]) -> bool:
    """Check that the CPU multiplies and adds int8 in one instruction; without it sums of int8 may overflow."""
    return not flags or any(flag in flags for flag in (*_VNNI, "amx_int8"))


def expected_gain(scheme: Scheme, engine: str, flags: frozenset[str]) -> str:
    """Return what this CPU can gain from a scheme, before anything is measured."""
    if not flags:
        return "the system does not tell what this CPU has; the measurement shows what is gained"
    if scheme.name == FLOAT16:
        fast = any(flag in flags for flag in ("avx512_fp16", "asimdhp"))
        return "half the size; " + ("this CPU has float16 arithmetic" if fast else "the CPU has no float16 arithmetic")
    if not scheme.is_for_speed:
        part = "an eighth" if scheme.bits == 4 else "a quarter"
        return f"matrices of {part} of the size; faster where the time goes into reading weights, as with one token"
    if scheme.name == DYNAMIC and engine != DEFAULT:
        return f"{engine} has no fast kernels for dynamic int8 as ONNX Runtime writes it: slower, as a rule"
    if "amx_int8" in flags:
        return "AMX multiplies int8 at up to 8 times the rate of float32 in AVX-512"
    if any(flag in flags for flag in _VNNI):
        dynamic = "; matrices only, and each run computes the ranges" if scheme.name == DYNAMIC else ""
        return f"VNNI multiplies int8 at up to 4 times the rate of float32{dynamic}"
    return "this CPU has no VNNI or AMX: int8 gains little, and weights get 7 bits so that sums do not overflow"
