"""torchport record PROGRAM"""

from __future__ import annotations

import contextlib
import sys

import click

from torchport.cli.output import common, print_json


@click.command(
    "record",
    short_help="Run a program and save what it feeds its model.",
    context_settings={"allow_interspersed_args": False},  # what comes after the program is the program's
)
@click.option("--output", "-o", required=True, metavar="FOLDER", help="Where the calls go, one .npz each.")
@click.option("--model", metavar="CLASS", help="Net or package.module.Net.  [default: the first one with weights]")
@click.option("--limit", type=int, metavar="N", help="Save that many calls at most.  [default: all]")
@click.argument("program", metavar="PROGRAM")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@common
def command(
    output: str,
    model: str | None,
    limit: int | None,
    program: str,
    arguments: tuple[str, ...],
    as_json: bool,
    quiet: bool,
) -> None:
    """Run the Python PROGRAM as it is, and save each call of its model: inputs and outputs.

    \b
    torchport record -o samples/ evaluate.py --split val
    torchport compare model.py:Net model.onnx --data samples/

    Ends with the program's own exit code.
    """
    from torchport.comparison.record import record_program

    # The result for machines has standard output to itself.
    apart = contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()
    with apart:
        recording = record_program([program, *arguments], output, model, limit=limit)
    if as_json:
        print_json(recording)
    elif not quiet:
        click.echo(str(recording))
    if recording.exit_code:
        raise click.exceptions.Exit(recording.exit_code)
