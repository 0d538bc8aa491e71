"""torchport export MODEL"""

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


@click.command("export", short_help="Export a PyTorch model to ONNX and prove it right.")
@click.argument("model", metavar="MODEL")
@click.option("--output", "-o", required=True, metavar="FILE", help="Where to save the ONNX model.")
@click.option(
    "--route",
    type=click.Choice(["auto", "export", "rewrite", "script", "trace"]),
    default="auto",
    show_default=True,
    help="How to capture.",
)
@click.option("--opset", type=int, default=None, help="The opset of the saved model, exactly.  [default: 20]")
@click.option("--input-names", metavar="A,B", help="Names for the inputs instead of the parameters' own.")
@click.option("--output-names", metavar="A,B", help="Names for the outputs.")
@click.option("--drop-unused-inputs", is_flag=True, help="Drop inputs the graph does not use.")
@click.option(
    "--weights",
    type=click.Choice(["include", "inputs", "omit"]),
    default="include",
    show_default=True,
    help="Keep weights in the model, list them as inputs too, or leave them out.",
)
@click.option(
    "--external-data/--inline-data",
    default=None,
    help="Weights beside the model or in it.  [default: by size]",
)
@click.option("--no-fold", is_flag=True, help="Do not fold constants.")
@library_option
@click.option(
    "--target",
    default=DEFAULT,
    show_default=True,
    metavar="ENGINE",
    help="Work around this engine's faults, and prove the model in it; none for the plain graph.",
)
@click.option("--custom-opset", multiple=True, metavar="DOMAIN=N", help="Version of an operator domain of yours.")
@tolerance_options
@click.option("--narrow", is_flag=True, help="Bound dimensions to the sizes at which the model is right.")
@click.option("--allow-unproven", is_flag=True, help="Save even if the proof fails; the model says so.")
@click.option("--verbose", is_flag=True, help="Let torch's own messages through.")
@page_option
@model_options
@common
def command(
    model: str,
    output: str,
    opset: int | None,
    input_names: str | None,
    output_names: str | None,
    drop_unused_inputs: bool,
    no_fold: bool,
    target: str,
    custom_opset: tuple[str, ...],
    inputs: tuple[str, ...],
    dynamic: tuple[str, ...],
    seed: int,
    trust: bool,
    page: str | None,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Export MODEL to ONNX, prove it right, and save it.

    MODEL is file.py:object or package.module:object (an instance, a class, or a factory without required
    arguments), a TorchScript .pt, or a .pt2.

    \b
    torchport export model.py:Net --input x=float32[1,3,224,224] \\
        --dynamic x:0=batch -o model.onnx
    """
    with progress(quiet or as_json) as say:
        say("loading")
        from torchport.conversion.export import export
        from torchport.conversion.options import DEFAULT_OPSET
        from torchport.files.filesystem import check_target

        check_target(output)
        check_page(page)
        options["libraries"] = load_libraries(options["libraries"])
        source = load(model, seed=seed, trust=trust)
        args, kwargs = gather(source, inputs, seed, required=not model.endswith(".pt2"))
        exported = export(
            source.model,
            args,
            kwargs=kwargs,
            output=output,
            opset=DEFAULT_OPSET if opset is None else opset,
            dynamic=list(dynamic) or None,
            input_names=input_names.split(",") if input_names else None,
            output_names=output_names.split(",") if output_names else None,
            keep_unused_inputs=not drop_unused_inputs,
            fold_constants=not no_fold,
            target=None if target == "none" else target,
            custom_opsets=_versions(custom_opset),
            progress=say,
            **options,
        )
    write_page(page, output, exported)
    if as_json:
        print_json(exported)
    else:
        click.echo(str(exported))


def _versions(texts: tuple[str, ...]) -> dict[str, int]:
    versions: dict[str, int] = {}
    for text in texts:
        domain, _, number = text.partition("=")
        if not domain or not number.isdecimal():
            raise click.BadParameter(f"'{text}' is not DOMAIN=N", param_hint="--custom-opset")
        versions[domain] = int(number)
    return versions
