"""A process in which nncf and onnxruntime.quantization run, with limits of time and memory.

They take as much memory as they like, crash on some models, and change settings of the whole process. Models and
samples go through files.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torchport.benchmark import child
from torchport.benchmark.command_process import CommandError, CommandProcess
from torchport.errors import QuantizationError
from torchport.optimization.scheme import NNCF, Scheme


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

    def dynamic(self, source: Path, target: Path, scheme: Scheme, exclude: Sequence[str]) -> None:
        """Quantize without data, all nodes but these."""
        self._quantize(scheme, "dynamic", {"source": source, "target": target, "exclude": list(exclude)})

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

    def dynamic(
        self, source: str, target: str, scheme: dict[str, Any], exclude: list[str], memory: int | None
    ) -> dict[str, Any]:
        """Quantize without data."""
        from torchport.optimization import dynamic_int8

        child.limit_process(memory)
        dynamic_int8.by_onnxruntime(Path(source), Path(target), Scheme(**scheme), exclude)
        return {}


if __name__ == "__main__":
    os.environ["NNCF_CI"] = "1"  # nncf reports its use over the network otherwise
    child.main(Quantizing, ("static", "dynamic"))
