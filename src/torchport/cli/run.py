"""torchport run FILE"""

from __future__ import annotations

import click

from torchport.cli.given import library_option
from torchport.cli.own_operators import load_libraries
from torchport.cli.show import common, print_json, progress


@click.command("run", short_help="Run an ONNX model on given inputs.")
@click.argument("file", metavar="FILE")
@click.option(
    "--input",
    "-i",
    "inputs",
    multiple=True,
    metavar="SPEC",
    help="x=x.npy, data.npz, x=float32[1,3,224,224], n=3; repeat for each input.",
)
@click.option("--output", "-o", metavar="FILE", help="Save the outputs as .npz, or a single one as .npy.")
@click.option(
    "--watch",
    multiple=True,
    metavar="PATTERN",
    help="Show tensors inside too: names, 'relu_*', or modules of the PyTorch model.",
)
@click.option("--engine", default="onnxruntime", show_default=True, help="What runs the model.")
@library_option
@click.option("--seed", default=0, show_default=True, help="Seed for made-up inputs.")
@common
def command(
    file: str,
    inputs: tuple[str, ...],
    output: str | None,
    watch: tuple[str, ...],
    engine: str,
    libraries: tuple[str, ...],
    seed: int,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run the ONNX model FILE and show its outputs.

    \b
    torchport run model.onnx --input x=x.npy -o out.npz
    """
    with progress(quiet or as_json) as say:
        say("loading")
        from torchport.cli import arrays
        from torchport.engines.base import open_session
        from torchport.graph.exposing import expose

        if output is not None:
            arrays.check_output(output)
        model = expose(file, watch) if watch else file
        session = open_session(model, engine, libraries=load_libraries(libraries))
        feeds = arrays.read(session, inputs, seed)
        say("running")
        outputs = session.run(feeds)
    if output is not None:
        arrays.save(output, outputs)
    if as_json:
        print_json({"outputs": {n: arrays.summary(a) for n, a in outputs.items()}, "path": output})
        return
    for name in session.in_python:
        click.echo(f"note: {name} has no kernel; PyTorch ran it", err=True)
    for name, array in outputs.items():
        click.echo(f"{name}: {arrays.one_line(array)}")
    if output is not None:
        click.echo(f"saved to {output}")
