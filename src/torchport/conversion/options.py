"""The options of an export, as one record that every step takes."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from torchport.capture.reference import MODES, Mode
from torchport.engines.custom_operators import library_paths
from torchport.engines.registry import DEFAULT, check_engine
from torchport.errors import OptionError
from torchport.facade import shown
from torchport.operators import registration
from torchport.opset import convert as opsets

DEFAULT_OPSET = 20

# What stands for arguments of torch.onnx.export that are called otherwise here; docs/exporting.md has the whole table.
TORCH_NAMES = {
    **dict.fromkeys(("f", "path", "file", "filename"), "output"),
    "opset_version": "opset",
    **dict.fromkeys(("dynamic_axes", "dynamic_shapes"), "dynamic"),
    "dynamo": 'write route="export" for True, route="trace" for False',
    "fallback": 'leave it out, route="auto" tries other routes where one fails',
    "export_params": 'write weights="omit" for False',
    "keep_initializers_as_inputs": 'write weights="inputs" for True',
    "use_external_data_format": "external_data",
    "training": 'write mode="eval", mode="train" or mode="keep"',
    **dict.fromkeys(("do_constant_folding", "optimize"), "fold_constants"),
    "custom_translation_table": "translations",
    "verify": "leave it out, the model is always proven; allow_unproven=True saves what fails",
    "report": "leave it out, the result has attempts, proof and findings",
    **dict.fromkeys(
        (
            *("aten", "artifacts_dir", "autograd_inlining", "dump_exported_program", "enable_onnx_checker"),
            *("example_outputs", "export_modules_as_functions", "export_raw_ir", "operator_export_type", "profile"),
            *("strip_doc_string", "_retain_param_name"),
        ),
        "leave it out, docs/exporting.md says why",
    ),
}

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
        library_paths(self.libraries)
        if self.translations is not None and not isinstance(self.translations, Mapping):
            raise OptionError(
                f"translations is a mapping from operators to functions, not {shown(self.translations)}",
                next_step="write translations={torch.ops.aten.asinh.default: function}",
            )
        registration.by_overload(self.translations or {})

    def _check_output(self) -> None:
        if self.output is None:
            return
        if not isinstance(self.output, (str, os.PathLike)):
            raise OptionError(f"output is a path, not {shown(self.output)}", next_step='write output="model.onnx"')
        if Path(self.output).suffix in (".pt", ".pth", ".pt2", ".ts", ".py", ".npy", ".npz"):
            raise OptionError(f"output '{self.output}' ends like another kind of file", next_step="name it model.onnx")

    @property
    def engine(self) -> str:
        """The engine that proves the model: the target, or the default one for a plain graph."""
        return self.target or DEFAULT
