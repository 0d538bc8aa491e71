"""What quantizing gains: models measured beside the float one, in turns, in processes of their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torchport.benchmark.bench_table import BenchTable
from torchport.benchmark.benchmarking import bench
from torchport.engines.options import open_options
from torchport.engines.protocol import OpenOptions
from torchport.errors import QuantizationError
from torchport.optimization.quantization_report import Speed
from torchport.tensors import Array

_PROCESSES = 3


@dataclasses.dataclass(frozen=True)
class Conditions:
    """How models are measured.

    Attributes:
        engine: what runs them.
        feeds: the inputs.
        opening: threads, options and libraries, as `open_session` takes them.
        seconds: for each model; 0 to measure nothing.
    """

    engine: str
    feeds: Mapping[str, Array]
    opening: Mapping[str, Any]
    seconds: float

    @property
    def options(self) -> OpenOptions:
        """Return the options in the form that engines take."""
        given = self.opening
        return open_options(
            self.engine, threads=given["threads"], settings=given["options"], libraries=given["libraries"]
        )


def speeds(reference: Path, others: Sequence[Path], conditions: Conditions) -> tuple[list[Speed], BenchTable]:
    """Measure models beside the float one, all in the same turns.

    Raises:
        QuantizationError: one of them cannot be run.
        KeyboardInterrupt: it was interrupted.
    """
    table = bench(
        [reference, *others],
        engines=[conditions.engine],
        inputs=conditions.feeds,
        seconds=conditions.seconds,
        processes=_PROCESSES,
        **conditions.opening,
    )
    if table.interrupted:
        raise KeyboardInterrupt
    failed = next((row for row in table.rows if row.median_seconds is None), None)
    if failed is not None:
        raise QuantizationError(
            f"the quantized model could not be measured in {conditions.engine}: {failed.reason}",
            next_step=failed.next_step or "try another --engine or --scheme",
        )
    return [_speed(table, number) for number in range(1, len(table.rows))], table


def _speed(table: BenchTable, number: int) -> Speed:
    first, row = table.rows[0], table.rows[number]
    verdict = next(v for v in table.verdicts if (v.first, v.second) == (first.candidate, row.candidate))
    medians = [float(r.median_seconds or 0.0) for r in (first, row)]
    return Speed(verdict.ratio, verdict.low, verdict.high, verdict.differs, *medians)


def is_faster(table: BenchTable, number: int, than: int) -> bool:
    """Check that one of the models is faster than another beyond the noise."""
    names = table.rows[number].candidate, table.rows[than].candidate
    for verdict in table.verdicts:
        if (verdict.first, verdict.second) == names:
            return verdict.differs and verdict.ratio < 1
        if (verdict.second, verdict.first) == names:
            return verdict.differs and verdict.ratio > 1
    return False


def check_faster(speed: Speed, engine: str) -> None:
    """Check that a model whose purpose is speed is not slower.

    Raises:
        QuantizationError: it is, beyond the noise.
    """
    if speed.slower:
        raise QuantizationError(
            f"the quantized model is slower in {engine}: {speed}",
            next_step="try another --engine or --scheme, or leave it in float; --seconds 0 saves it unmeasured",
        )
