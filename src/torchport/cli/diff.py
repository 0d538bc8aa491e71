"""torchport diff A B"""

from __future__ import annotations

import sys

import click

from torchport.cli.options import check_page, page_option, write_page
from torchport.cli.output import common, print_json, progress


@click.command("diff", short_help="Show what differs between two ONNX models.")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option("--all", "everything", is_flag=True, help="List every difference, not the first ten of a kind.")
@page_option
@common
def command(a: str, b: str, everything: bool, page: str | None, as_json: bool, quiet: bool) -> None:
    """Show what differs between the ONNX models A and B: interface, nodes, weights, header.

    Nodes are told by what is around them, so renaming everything is no more than that. Exits 1 if something differs.

    \b
    torchport diff before.onnx after.onnx
    """
    with progress(quiet or as_json or not sys.stderr.isatty()) as say:
        say("reading")
        check_page(page)
        from torchport.inspection.diff.diff import diff
        from torchport.inspection.diff.result import text

        found = diff(a, b)
    write_page(page, b, found)
    if as_json:
        print_json(found)
    else:
        click.echo(text(found, everything=everything))
    if not found.same:
        raise click.exceptions.Exit(1)
