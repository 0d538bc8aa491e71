"""torchport verify FILE --against MODEL"""

from __future__ import annotations

from typing import Any

import click

from torchport.cli.ops import load_libraries
from torchport.cli.options import (
    check_page,
    gather,
    library_option,
    load,
    model_options,
    page_option,
    tolerance_options,
    write_page,
)
from torchport.cli.output import common, print_json, progress
from torchport.engines.registry import DEFAULT


@click.command("verify", short_help="Prove an existing ONNX file against its PyTorch source.")
@click.argument("file", metavar="FILE")
@click.option("--against", required=True, metavar="MODEL", help="The PyTorch model, as for `torchport export`.")
@click.option("--engine", default=DEFAULT, show_default=True, help="What runs the ONNX model.")
@library_option
@tolerance_options
@page_option
@model_options
@common
def command(
    file: str,
    against: str,
    inputs: tuple[str, ...],
    dynamic: tuple[str, ...],
    seed: int,
    trust: bool,
    page: str | None,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Prove the ONNX model FILE against the PyTorch model it should equal.

    Without --input or example_inputs(), inputs are made up from the shapes in FILE. Without --dynamic, every axis
    that has a name in FILE is varied. Exits 1 if an answer differs.

    \b
    torchport verify model.onnx --against model.py:Net
    """
    with progress(quiet or as_json) as say:
        say("loading")
        from torchport.conversion.verify import check_order, verify
        from torchport.files import onnx_files

        check_order(file, against)
        check_page(page)
        onnx_files.load(file)  # a broken file is said before a slow import
        options["libraries"] = load_libraries(options["libraries"])
        source = load(against, seed=seed, trust=trust)
        args, kwargs = gather(source, inputs, seed, required=False)
        proof = verify(file, source.model, args, kwargs=kwargs, dynamic=list(dynamic) or None, progress=say, **options)
    write_page(page, file, proof)
    if as_json:
        print_json(proof)
    else:
        click.echo(str(proof))
    if not proof.passed:
        raise click.exceptions.Exit(1)
