"""torchport lint FILE"""

from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING

import click

from torchport.cli.output import common, print_json, progress

if TYPE_CHECKING:
    from torchport.inspection.lint.fault import Fault

_COLORS = {"error": "red", "warning": "yellow", "note": "blue"}
_FEW = 5


@click.command("lint", short_help="List every fault of an ONNX model.")
@click.argument("file", metavar="FILE")
@click.option("--engine", metavar="NAME", help="Also list operators this engine has no kernel for.")
@click.option("--all", "everything", is_flag=True, help="List every fault, not the first five of a kind.")
@common
def command(file: str, engine: str | None, everything: bool, as_json: bool, quiet: bool) -> None:
    """List every fault of the ONNX model FILE, and what to do about each. Exits 1 if one is an error.

    \b
    torchport lint model.onnx --engine onnxruntime
    """
    with progress(quiet or as_json or not sys.stderr.isatty()) as say:
        say("reading")
        from torchport.inspection.lint.linter import lint

        found = lint(file, engine)
    if as_json:
        print_json({"faults": found, "counts": _counts(found)})
    else:
        _show(found, everything)
    if any(fault.severity == "error" for fault in found):
        raise click.exceptions.Exit(1)


def _show(found: list[Fault], everything: bool) -> None:
    for rule in dict.fromkeys((f.severity, f.rule) for f in found):
        alike = [f for f in found if (f.severity, f.rule) == rule]
        for fault in alike if everything else alike[:_FEW]:
            _show_one(fault)
        if not everything and len(alike) > _FEW:
            click.echo(f"       and {len(alike) - _FEW} more like it (--all lists them)")
    counts = [f"{n} {severity}{'s' if n > 1 else ''}" for severity, n in _counts(found).items() if n]
    click.echo(", ".join(counts) if counts else "no faults")


def _show_one(fault: Fault) -> None:
    label = click.style(fault.severity, fg=_COLORS[fault.severity], bold=True)
    text = _filled(f"{fault.message}  [{fault.rule}]", len(fault.severity) + 2)
    click.echo(f"{label}: {text}")
    if fault.source:
        click.echo(_filled(f"where: {fault.source.rpartition('site-packages/')[2]}", 7, first=7))
    click.echo(_filled(f"next:  {fault.next_step}", 14, first=7))


def _filled(text: str, indent: int, *, first: int = 0) -> str:
    filled = textwrap.fill(
        text,
        80,
        initial_indent=" " * (first or indent),
        subsequent_indent=" " * (indent if first else 7),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return filled if first else filled.lstrip()


def _counts(found: list[Fault]) -> dict[str, int]:
    return {severity: sum(f.severity == severity for f in found) for severity in _COLORS}
