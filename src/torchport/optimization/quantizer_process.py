"""A process in which nncf and onnxruntime.quantization run, with limits of time and memory.

They take as much memory as they like, crash on some models, and change settings of the whole process. Models and
samples go through files.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from torchport.benchmark import child
from torchport.benchmark.command_process import CommandError, CommandProcess
from torchport.errors import QuantizationError
from torchport.optimization.scheme import DYNAMIC, FLOAT16, NNCF, Scheme


class QuantizerProcess(CommandProcess):
    """A process that quantizes. It never outlives the `with` block.

    Args:
        limit: the seconds that it may take in all.
        memory: the bytes of address space it may take; None for no limit.
    """

    def __init__(self, *, limit: float, memory: int | None) -> None:
        super().__init__(Path(__file__), limit=limit)
        self._memory = memory

    def static(
        self, source: Path, target: Path, scheme: Scheme, samples: tuple[Path, Sequence[str]], libraries: Sequence[str]
    ) -> None:
        """Quantize with ranges from samples, which are in a folder by these names."""
        folder, names = samples
        self._quantize(
            scheme,
            "static",
            {"source": source, "target": target, "data": folder, "names": list(names), "libraries": list(libraries)},
        )

    def without_ranges(
        self, source: Path, target: Path, scheme: Scheme, samples: tuple[Path, Sequence[str]], exclude: Collection[str]
    ) -> None:
        """Quantize where no ranges are stored: all nodes but these."""
        folder, names = samples
        arguments = {"source": source, "target": target, "data": folder, "names": list(names)}
        self._quantize(scheme, "without_ranges", {**arguments, "exclude": sorted(exclude)})

    def _quantize(self, scheme: Scheme, command: str, arguments: Mapping[str, Any]) -> None:
        plain = {name: str(value) if isinstance(value, Path) else value for name, value in arguments.items()}
        try:
            self.ask(command, scheme=_plain(scheme), memory=self._memory, **plain)
        except CommandError as error:
            raise QuantizationError(
                f"{scheme.quantizer} failed to quantize the model: {error.facts['reason']}",
                where=f"--scheme {scheme.name}",
                next_step="try another --scheme or --calibration; `torchport reduce` finds the part it fails on",
            ) from error


def _plain(scheme: Scheme) -> dict[str, Any]:
    return {name: getattr(scheme, name) for name in scheme.__dataclass_fields__}


class Quantizing:
    """Obeys the commands, in the process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def static(
        self,
        source: str,
        target: str,
        scheme: dict[str, Any],
        data: str,
        names: list[str],
        libraries: list[str],
        memory: int | None,
    ) -> dict[str, Any]:
        """Quantize with ranges from samples."""
        from torchport.optimization import static_int8

        child.limit_process(memory)
        asked = Scheme(**scheme)
        samples = static_int8.Samples(lambda name: child.read_arrays(Path(data), name), names)
        if asked.quantizer == NNCF:
            static_int8.by_nncf(Path(source), Path(target), samples, asked)
        else:
            static_int8.by_onnxruntime(Path(source), Path(target), samples, asked, libraries, self._folder)
        return {}

    def without_ranges(
        self,
        source: str,
        target: str,
        scheme: dict[str, Any],
        data: str,
        names: list[str],
        exclude: list[str],
        memory: int | None,
    ) -> dict[str, Any]:
        """Quantize where no ranges are stored."""
        from torchport.optimization import dynamic_int8, half_precision, weight_only
        from torchport.optimization.static_int8 import Samples

        child.limit_process(memory)
        asked = Scheme(**scheme)
        if asked.name == DYNAMIC:
            dynamic_int8.by_onnxruntime(Path(source), Path(target), asked, exclude)
        elif asked.name == FLOAT16:
            half_precision.quantize(Path(source), Path(target), exclude)
        else:
            samples = Samples(lambda name: child.read_arrays(Path(data), name), names)
            weight_only.quantize(Path(source), Path(target), asked, exclude, samples)
        return {}


if __name__ == "__main__":
    os.environ["NNCF_CI"] = "1"  # nncf reports its use over the network otherwise
    child.main(Quantizing, ("static", "without_ranges"))
