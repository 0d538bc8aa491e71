"""Text for a terminal of 80 columns: tables, wrapped and clipped lines, numbers with their units."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any


def human(value: float) -> str:
    """``1234567`` is ``1.23M``."""
    for factor, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g}{letter}" if abs(value) / factor < 999.5 else f"{value / factor:.0f}{letter}"
    return f"{value:.3g}" if abs(value) < 999.5 else "1k"


def human_bytes(value: float) -> str:
    """``3145728`` is ``3 MiB``."""
    for factor, unit in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if abs(value) >= factor:
            return f"{value / factor:.4g} {unit}"
    return f"{value:.4g} B"


WIDTH = 80


def clip(line: str, width: int = WIDTH) -> str:
    """The line, its middle left out if it is longer than the terminal."""
    if len(line) <= width:
        return line
    return f"{line[: (width - 1) // 2]}…{line[len(line) - width // 2 :]}"


def table(rows: Sequence[Sequence[str]], *, right: Iterable[int] = ()) -> list[str]:
    """Rows in columns, the ones in `right` flush right; the widest columns give way until a line fits."""
    if not rows:
        return []
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    while sum(widths) + 2 * len(widths) > WIDTH:
        widths[widths.index(max(widths))] -= 1
    numbers = set(right)
    lines = []
    for row in rows:
        cells = [clip(cell, width) for cell, width in zip(row, widths, strict=True)]
        aligned = [c.rjust(widths[n]) if n in numbers else c.ljust(widths[n]) for n, c in enumerate(cells)]
        lines.append(("  " + "  ".join(aligned)).rstrip())
    return lines


def shape_text(dtype: str, shape: Sequence[Any] | None) -> str:
    """``float32[batch,3,?]``"""
    return dtype + ("" if shape is None else f"[{','.join('?' if d is None else str(d) for d in shape)}]")


def wrapped(label: str, content: str) -> str:
    """A labelled line, continued under itself."""
    start = f"  {label:<11} "
    whole = re.sub(r"(\d) (?=B|[KMGT]iB)", "\\1\xa0", content)  # a number and its unit stay together
    filled = textwrap.fill(
        whole,
        WIDTH,
        initial_indent=start,
        subsequent_indent=" " * len(start),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(map(clip, filled.replace("\xa0", " ").splitlines()))


def shortened(text: str, most: int) -> str:
    """A text that fits into so many letters."""
    return text if len(text) <= most else text[: most - 3] + "..."
