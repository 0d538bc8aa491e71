"""A benchmark as a picture: a bar for each row's median with marks at p90 and p99, and a bar for its throughput."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from torchport.benchmark.bench_table import BenchRow, BenchTable, point_text
from torchport.benchmark.engine_table import time_text
from torchport.errors import OptionError
from torchport.files.filesystem import check_target, write_atomically
from torchport.terminal import clip, human

_LABELS, _BARS, _FIGURES = 260, 420, 90  # widths of the columns
_ROW, _GAP, _TITLE = 22, 34, 40
_COLORS = ("#4878a8", "#c8763c", "#5a9a5a", "#a05050", "#8068a8", "#7a6a5a")  # by candidate, then from the start
_NAMES = 40  # letters of a label


def check_plot(path: str | os.PathLike[str]) -> None:
    """Check that a plot can be written there, before anything is measured."""
    target = Path(path)
    if target.suffix.lower() != ".svg":
        raise OptionError(
            f"a plot is an .svg file, not {target.name}", where=f"--plot {path}", next_step="name it .svg"
        )
    check_target(target)


def save_plot(result: BenchTable, path: str | os.PathLike[str]) -> None:
    """Write the picture; the file is there whole or not at all."""
    check_plot(path)
    write_picture(svg(result), path)


def write_picture(content: str, path: str | os.PathLike[str]) -> None:
    """Write an .svg file."""
    write_atomically(path, lambda part: part.write_text(content, encoding="utf-8"))


def picture(width: int, height: int, content: Iterable[str]) -> str:
    """Return a picture of these elements on white."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
            ' font-family="sans-serif" font-size="12">',
            f'<rect width="{width}" height="{height}" fill="white"/>',
            *content,
            "</svg>\n",
        ]
    )


def svg(result: BenchTable) -> str:
    """Return the picture as text."""
    rows = [row for row in result.rows if row.median_seconds is not None]
    width = _LABELS + _BARS + _FIGURES
    panels = [
        *_panel("latency: median, with marks at p90 and p99", rows, _latency, _marks, _TITLE),
        *_panel("throughput, runs a second", rows, _throughput, lambda row: [], _TITLE + _height(rows)),
    ]
    height = _TITLE + 2 * _height(rows)
    names = clip(", ".join(dict.fromkeys(result.models)), 100)
    return picture(width, height, [text_at(10, 22, names, size=14), *panels])


def _height(rows: Sequence[BenchRow]) -> int:
    return _GAP + _ROW * len(rows) + 10


def _latency(row: BenchRow) -> tuple[float, str]:
    seconds = row.median_seconds or 0.0
    return seconds, time_text(seconds)


def _throughput(row: BenchRow) -> tuple[float, str]:
    return row.throughput or 0.0, human(row.throughput or 0.0)


def _marks(row: BenchRow) -> list[float]:
    return [seconds for seconds in (row.p90_seconds, row.p99_seconds) if seconds is not None]


def _panel(
    title: str,
    rows: Sequence[BenchRow],
    figure: Callable[[BenchRow], tuple[float, str]],
    marks: Callable[[BenchRow], list[float]],
    top: int,
) -> Iterator[str]:
    """Give the bars of one figure. A mark beyond twice the longest bar stands at the right edge."""
    yield text_at(10, top + 20, title)
    longest = max((figure(row)[0] for row in rows), default=0.0) or 1.0
    most = min(max([longest, *(m for row in rows for m in marks(row))]), 2 * longest)
    names = list(dict.fromkeys(row.candidate for row in rows))
    for n, row in enumerate(rows):
        y = top + _GAP + n * _ROW
        value, text = figure(row)
        end = _LABELS + _BARS * value / most
        color = _COLORS[names.index(row.candidate) % len(_COLORS)]
        yield text_at(_LABELS - 8, y + 13, clip(_label(row, rows), _NAMES), anchor="end")
        yield f'<rect x="{_LABELS}" y="{y + 2}" width="{end - _LABELS:.1f}" height="{_ROW - 6}" fill="{color}"/>'
        for mark in marks(row):
            x = _LABELS + _BARS * min(mark / most, 1.0)
            yield f'<path d="M{end:.1f} {y + 10}H{x:.1f}M{x:.1f} {y + 5}v10" stroke="#333" fill="none"/>'
        yield text_at(_LABELS + _BARS + 8, y + 13, text)


def _label(row: BenchRow, rows: Sequence[BenchRow]) -> str:
    points = {(tuple(r.at.items()), r.clients) for r in rows}
    return row.candidate if len(points) == 1 else f"{row.candidate}, {point_text(row.at, row.clients)}"


def text_at(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12) -> str:
    """Return an element with a text."""
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'
