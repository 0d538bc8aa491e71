"""A search as a picture: the time of each candidate against its noise, the frontier marked."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence

from torchport.benchmark.bench_plot import check_plot, picture, text_at, write_picture
from torchport.benchmark.engine_table import time_text
from torchport.optimization.tuning_result import Tuning, TuningRow
from torchport.terminal import clip

_WIDTH, _HEIGHT = 760, 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 30, 60, 50
_FLOOR = 1e-15  # noise below it is drawn as zero
_COLORS = {"best": "#c8763c", "frontier": "#4878a8", "behind": "#b0b0b0"}


def save_tuning_plot(result: Tuning, path: str | os.PathLike[str]) -> None:
    """Write the picture; the file is there whole or not at all."""
    check_plot(path)
    write_picture(svg(result), path)


def svg(result: Tuning) -> str:
    """Return the picture as text."""
    rows = [row for row in result.rows if row.status != "dropped" and row.seconds]
    title = clip(f"{result.model}: tuned for {result.objective}, tolerance {result.tolerance}", 100)
    return picture(_WIDTH, _HEIGHT, [text_at(10, 22, title, size=14), *_axes(rows), *_points(rows)])


def _x(seconds: float, rows: Sequence[TuningRow]) -> float:
    longest = max(row.seconds or 0.0 for row in rows)
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * seconds / longest


def _y(noise: float, rows: Sequence[TuningRow]) -> float:
    """Return the height of a noise; the axis is logarithmic, with zero at its foot."""
    largest = max(max((row.noise or 0.0) for row in rows), 10 * _FLOOR)
    span = math.log10(largest / _FLOOR)
    part = math.log10(max(noise, _FLOOR) / _FLOOR) / span
    return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * part


def _axes(rows: Sequence[TuningRow]) -> Iterator[str]:
    foot = _HEIGHT - _BOTTOM
    yield f'<path d="M{_LEFT} {_TOP}V{foot}H{_WIDTH - _RIGHT}" stroke="#333" fill="none"/>'
    yield text_at(_LEFT, _TOP - 12, "noise as a part of the signal, logarithmic; 0 at the foot")
    yield text_at(_WIDTH - _RIGHT, foot + 40, "time of a run", anchor="end")
    if not rows:
        return
    longest = max(row.seconds or 0.0 for row in rows)
    for part in (0.25, 0.5, 0.75, 1.0):
        x = _x(part * longest, rows)
        yield f'<path d="M{x:.1f} {foot}v5" stroke="#333"/>'
        yield text_at(x, foot + 20, time_text(part * longest), anchor="middle")
    largest = max(max(row.noise or 0.0 for row in rows), 10 * _FLOOR)
    for exponent in range(-14, math.ceil(math.log10(largest)) + 1, 2):
        if 10.0**exponent <= largest:
            y = _y(10.0**exponent, rows)
            yield f'<path d="M{_LEFT - 5} {y:.1f}h5" stroke="#333"/>'
            yield text_at(_LEFT - 8, y + 4, f"1e{exponent}", anchor="end")


def _points(rows: Sequence[TuningRow]) -> Iterator[str]:
    """Give a circle for each candidate; those of the frontier have a label."""
    for row in sorted(rows, key=lambda row: row.status != "behind"):
        x, y = _x(row.seconds or 0.0, rows), _y(row.noise or 0.0, rows)
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{_COLORS[row.status]}"/>'
        if row.status != "behind":
            anchor = "end" if x > _WIDTH / 2 else "start"
            yield text_at(x + (-9 if anchor == "end" else 9), y - 8, clip(row.candidate, 60), anchor=anchor)
