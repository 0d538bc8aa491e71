"""torchport report FILE"""

from __future__ import annotations

from typing import Any

import click

from torchport.cli.engines import sizes
from torchport.cli.output import common, print_json, progress


@click.command("report", short_help="Write one HTML page that shows a model, its errors and its time.")
@click.argument("file", metavar="FILE")
@click.option("-o", "--output", required=True, metavar="PAGE", help="The page to write: report.html.")
@click.option("--against", metavar="MODEL", help="A PyTorch or ONNX model to compare with, tensor by tensor.")
@click.option("--profile", is_flag=True, help="Measure the time of each kernel in ONNX Runtime.")
@click.option("--at", multiple=True, metavar="DIM=SIZE", callback=sizes, help="A size to profile at: batch=8.")
@click.option(
    "--input", "-i", "inputs", multiple=True, metavar="SPEC", help="x=x.npy, x=float32[1,3,224,224], n=3; repeat."
)
@click.option("--seed", default=0, show_default=True, help="Seed for made-up inputs and weights.")
@click.option("--trust", is_flag=True, help="Load a .pt or .pt2 that runs code when loaded.")
@common
def command(
    file: str,
    output: str,
    against: str | None,
    profile: bool,
    at: dict[str, int],
    inputs: tuple[str, ...],
    seed: int,
    trust: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Write one HTML page that shows the ONNX model FILE: summary, findings, and the graph to walk through.

    The page needs no network. With --against it shows where the errors are, with --profile where the time goes. Exits 1
    if the models differ.

    \b
    torchport report model.onnx -o report.html
    torchport report model.onnx --against model.py:Net --profile -o report.html
    """
    with progress(quiet or as_json) as say:
        say("loading")
        from torchport.reports.report import report

        side, given = _comparison(file, against, inputs, seed, trust)
        found = report(file, output, against=side, inputs=given, profile=profile, at=at, progress=say)
    if as_json:
        print_json(found)
    else:
        click.echo(str(found))
    if found.agrees is False:
        raise click.exceptions.Exit(1)


def _comparison(file: str, against: str | None, inputs: tuple[str, ...], seed: int, trust: bool) -> tuple[Any, Any]:
    """Return the model to compare with, if any, and the inputs that --input gives or that stand beside that model."""
    from torchport.cli.compare import Given, given_inputs

    sides = [*([Given(against, seed, trust)] if against is not None else []), Given(file, seed, trust)]
    given = given_inputs(sides, inputs, seed) if against is not None or inputs else None
    return (sides[0].model if against is not None else None), given
