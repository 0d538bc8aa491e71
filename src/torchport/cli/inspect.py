"""torchport inspect FILE"""

from __future__ import annotations

import sys

import click

from torchport.cli.output import common, print_json, progress


@click.command("inspect", short_help="Show what an ONNX model is made of.")
@click.argument("file", metavar="FILE")
@click.option("--at", "sizes", multiple=True, metavar="SIZES", help="Cost at these sizes: batch=8,height=224.")
@click.option("--node", metavar="NAME", help="Show one node and its neighbors.")
@click.option("--tensor", metavar="NAME", help="Show one tensor, its neighbors and, for a weight, its values.")
@click.option("--module", metavar="PATH", help="Show one module: what goes in, what comes out, its weights.")
@click.option("--depth", default=2, show_default=True, help="How deep to show the tree of modules.")
@click.option("--all", "everything", is_flag=True, help="Show every weight, operator and module.")
@common
def command(
    file: str,
    sizes: tuple[str, ...],
    node: str | None,
    tensor: str | None,
    module: str | None,
    depth: int,
    everything: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Show what the ONNX model FILE is made of: interface, weights, operators, cost of a run, modules.

    \b
    torchport inspect model.onnx --at batch=8,height=224
    torchport inspect model.onnx --tensor fc.weight
    """
    at = _parsed(sizes)
    with progress(quiet or as_json or not sys.stderr.isatty()) as say:
        say("reading")
        from torchport.inspection.describe import describe
        from torchport.inspection.description import text
        from torchport.inspection.look import look

        one = node is not None or tensor is not None or module is not None
        found = look(file, node=node, tensor=tensor, module=module) if one else describe(file, at=at)
    if as_json:
        print_json(found)
    else:
        click.echo(str(found) if one else text(found, everything=everything, depth=depth))  # type: ignore[arg-type]


def _parsed(given: tuple[str, ...]) -> dict[str, int]:
    from torchport.errors import OptionError

    sizes: dict[str, int] = {}
    for part in (p for entry in given for p in entry.split(",") if p.strip()):
        name, _, size = part.strip().rpartition("=")
        if not name or not size.isdecimal():
            raise OptionError(
                f"'{part}' gives no size", where=f"--at {part}", next_step="write --at batch=8,height=224"
            )
        sizes[name.strip()] = int(size)
    return sizes
