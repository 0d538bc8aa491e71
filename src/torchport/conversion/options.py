"""The options of an export, as one record that every step takes."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from torchport.capture.reference import MODES, Mode
from torchport.engines.registry import DEFAULT, check_engine
from torchport.errors import OptionError
from torchport.opset import convert as opsets

DEFAULT_OPSET = 20

Progress = Callable[[str], None]
Weights = Literal["include", "inputs", "omit"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExampleOptions:
    """How a PyTorch model is run on its example. The fields are those of `tp.export`."""

    dynamic: Any = None
    examples: Sequence[Any] = ()
    input_names: Sequence[str] | None = None
    output_names: Sequence[str] | None = None
    mode: Mode = "eval"
    rtol: float | Mapping[str, float] | None = None
    atol: float | Mapping[str, float] | None = None
    progress: Progress | None = None

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise OptionError(f"there is no mode '{self.mode}'", next_step=f"use {', '.join(MODES)}")

    def say(self, text: str) -> None:
        """Report one step of the work."""
        if self.progress is not None:
            self.progress(text)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportOptions(ExampleOptions):
    """The options of `tp.export`, which explains them; checked when the record is made."""

    output: str | os.PathLike[str] | None = None
    route: str = "auto"
    opset: int = DEFAULT_OPSET
    keep_unused_inputs: bool = True
    weights: Weights = "include"
    external_data: bool | None = None
    fold_constants: bool = True
    custom_opsets: Mapping[str, int] | None = None
    translations: Mapping[Any, Callable[..., Any]] | None = None
    libraries: Sequence[str | os.PathLike[str]] = ()
    target: str | None = DEFAULT
    narrow: bool = False
    allow_unproven: bool = False
    verbose: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.opset, bool) or not isinstance(self.opset, int):
            raise OptionError(f"opset={self.opset!r} is no whole number", next_step="write opset=17")
        opsets.check_range(self.opset)
        self._check_output()
        if (self.custom_opsets or {}).keys() & {"", "ai.onnx"}:
            raise OptionError("custom_opsets is for domains of your own", next_step="ONNX's own version is opset=N")
        if self.weights not in ("include", "inputs", "omit"):
            raise OptionError(f"weights={self.weights!r} is unknown", next_step="use include, inputs or omit")
        if self.target is not None:
            check_engine(self.target)

    def _check_output(self) -> None:
        if self.output is None:
            return
        if not isinstance(self.output, (str, os.PathLike)):
            raise OptionError(f"output={self.output!r} is no path", next_step='write output="model.onnx"')
        if Path(self.output).suffix in (".pt", ".pth", ".pt2", ".ts", ".py", ".npy", ".npz"):
            raise OptionError(f"output '{self.output}' ends like another kind of file", next_step="name it model.onnx")

    @property
    def engine(self) -> str:
        """The engine that proves the model: the target, or the default one for a plain graph."""
        return self.target or DEFAULT
