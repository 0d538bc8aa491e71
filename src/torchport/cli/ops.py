"""torchport ops find | show | list | coverage | new | build | test | headers"""

from __future__ import annotations

import shutil
import textwrap
from typing import TYPE_CHECKING, Any

import click

from torchport.cli import own_operators
from torchport.cli.given import gather, load, model_options
from torchport.cli.show import common, print_json, progress

if TYPE_CHECKING:
    from torchport.conversion.coverage import Coverage
    from torchport.operators.catalog import TorchOperator
    from torchport.operators.onnx_catalog import OnnxOperator

_MOST = 40  # names shown without --all


@click.group("ops", short_help="Look operators up, and define your own.")
def command() -> None:
    """Look operators up, and define your own.

    \b
    torchport ops find asinh
    torchport ops show aten::upsample_bicubic2d
    torchport ops show Resize
    torchport ops list --missing
    torchport ops coverage model.py:Net
    torchport ops new mylib::my_op
    torchport ops test my_op.py
    """


for own in (own_operators.new, own_operators.build, own_operators.test, own_operators.headers):
    command.add_command(own)


@command.command("find")
@click.argument("text")
@common
def find(text: str, as_json: bool, quiet: bool) -> None:
    """List operators of torch and ONNX with TEXT in their names."""
    with progress(quiet or as_json) as say:
        say("loading")
        from torchport.errors import OptionError
        from torchport.operators import catalog

        found = catalog.find(text)
        if not found:
            close = catalog.closest(text)
            raise OptionError(
                f"no operator has '{text}' in its name",
                next_step=f"did you mean {', '.join(close)}?" if close else "give a shorter part of the name",
            )
    if as_json:
        print_json(found)
    else:
        _print_names(found)


@command.command("show")
@click.argument("name")
@common
def show(name: str, as_json: bool, quiet: bool) -> None:
    """Show all there is to know of one operator: aten::asinh, asinh, Resize."""
    with progress(quiet or as_json) as say:
        say("loading")
        from torchport.operators import catalog

        found = catalog.show(name)
    if as_json:
        print_json(found.to_json())
    elif isinstance(found, catalog.TorchOperator):
        _print_lines(_torch_lines(found))
    else:
        _print_lines(_onnx_lines(found))


@command.command("list")
@click.option("--missing", is_flag=True, help="Only operators that no route maps.")
@click.option("--all", "everything", is_flag=True, help="Show every name, however many.")
@common
def list_(missing: bool, everything: bool, as_json: bool, quiet: bool) -> None:
    """List aten operators."""
    with progress(quiet or as_json) as say:
        say("loading")
        from torchport.operators import catalog

        found = catalog.missing() if missing else catalog.aten_names()
    if as_json:
        print_json(found)
    else:
        _print_names(found, everything=everything)


@command.command("coverage")
@click.argument("model", metavar="MODEL")
@model_options
@common
def coverage(
    model: str,
    inputs: tuple[str, ...],
    dynamic: tuple[str, ...],
    seed: int,
    trust: bool,
    mode: str,
    as_json: bool,
    quiet: bool,
) -> None:
    """List every operator MODEL uses, and whether it gets to ONNX. Exit code 1 if one does not."""
    with progress(quiet or as_json) as say:
        say("loading")
        from torchport.conversion.coverage import coverage as cover

        source = load(model, seed=seed, trust=trust)
        args, kwargs = gather(source, inputs, seed)
        say("capturing")
        found = cover(source.model, args, kwargs=kwargs or None, dynamic=list(dynamic) or None)
    if as_json:
        print_json(found.to_json())
    else:
        _print_lines(_coverage_lines(found))
    if not found.supported:
        raise click.exceptions.Exit(1)


def _print_lines(lines: list[str]) -> None:
    """Long ones go on below, further in."""
    width = max(shutil.get_terminal_size().columns, 40)
    for line in lines:
        inner = " " * (len(line) - len(line.lstrip()) + 5)
        wrapped = textwrap.wrap(line, width, subsequent_indent=inner, break_long_words=False, drop_whitespace=True)
        click.echo("\n".join(wrapped or [""]))


def _print_names(names: list[str], *, everything: bool = False) -> None:
    shown = names if everything else names[:_MOST]
    click.echo("\n".join(shown))
    if len(names) > len(shown):
        click.echo(f"… and {len(names) - len(shown)} more; --all or --json shows them", err=True)


def _torch_lines(found: TorchOperator) -> list[str]:
    lines = [click.style(found.name, bold=True)]
    if found.calls:
        lines.append(f"  call   {', '.join(found.calls)}")
    lines += [f"  schema {schema}" for schema in found.schemas]
    for way in found.mappings:
        label = "" if way.overload in ("default", "any") else f".{way.overload}"
        lines.append(f"  {'/'.join(way.routes)}{label}: {_HOW[way.how]}")
        if way.onnx:
            lines.append(f"      to {', '.join(way.onnx)}" + (f", from opset {way.since}" if way.since else ""))
        if way.where:
            lines.append(f"      {way.where}")
    if not found.mappings:
        lines.append("  no route maps it")
        if found.alternatives:
            lines.append(f"  close: {', '.join(found.alternatives)}")
    return lines


_HOW = {
    "direct": "translated",
    "composed": "written in other torch operators, by torchport",
    "decomposed": "taken apart by torch; `ops coverage` tells for a model whether its parts get through",
}


def _onnx_lines(found: OnnxOperator) -> list[str]:
    lines = [click.style(f"{found.name} ({found.domain})", bold=True)]
    lines += [f"  {version:>3}  {change}" for version, change in found.versions]
    for title, entries in (("in", found.inputs), ("out", found.outputs), ("attr", found.attributes)):
        lines += [f"  {title:4} {entry}" for entry in entries]
    lines += [f"  type {entry}" for entry in found.types]
    for engine, kinds in found.engines.items():
        lines.append(f"  {engine}: {', '.join(kinds) if kinds else 'no kernel'}")
    if found.torch:
        lines.append(f"  from {', '.join(found.torch)}")
    return lines


def _coverage_lines(found: Coverage) -> list[str]:
    width = max((len(u.operator) for u in found.uses), default=0)
    lines = [f"{u.operator:{width}} {u.count:>5}  {_told(u)}" for u in found.uses]
    lost = [u for u in found.uses if u.missing]
    for use in lost:
        lines.append(
            f"missing: {', '.join(use.missing)}" + (f" (in {use.operator})" if use.missing != (use.operator,) else "")
        )
        lines += [f"    {line}" for line in use.lines[:3]]
        if use.alternatives:
            lines.append(f"    close: {', '.join(use.alternatives)}")
    verdict = "all of them get to ONNX" if found.supported else f"{len(lost)} of {len(found.uses)} do not get to ONNX"
    return [*lines, f"{len(found.uses)} operators, {verdict} ({found.note})"]


def _told(use: Any) -> str:
    if use.missing:
        return "missing"
    return f"{use.how}" + (f": {', '.join(use.onnx[:4])}" if use.onnx else "")
