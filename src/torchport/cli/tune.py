"""torchport tune MODEL"""

from __future__ import annotations

from typing import Any

import click

from torchport.cli.bench import sizes
from torchport.cli.options import check_page, library_option, page_option, write_page
from torchport.cli.output import common, print_json, progress
from torchport.cli.quantize import limits


def tolerance(context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> Any:
    """Read --tolerance float32, 1% or top1=1%."""
    return None if texts in ((), ("float32",)) else limits(context, parameter, texts)


@click.command("tune", short_help="Find the fastest way to run a model here, and save it.")
@click.argument("model", metavar="MODEL")
@click.option("--output", "-o", required=True, metavar="FOLDER", help="For the best model and its options.")
@click.option(
    "--tolerance",
    multiple=True,
    metavar="T",
    callback=tolerance,
    help="How far outputs may be off: 1%, cosine=0.001, top1=1%, sqnr=30; repeat.  [default: as a proof's]",
)
@click.option("--data", metavar="FOLDER", help="Samples, .npz files, for calibration and for comparing outputs.")
@click.option("--budget", default="5m", show_default=True, metavar="TIME", help="How long to search: 90s, 5m, 1h.")
@click.option(
    "--objective",
    default="latency",
    show_default=True,
    metavar="O",
    help="latency, throughput, size or memory.",
)
@click.option("--engines", metavar="A,B", help="That take part.  [default: all that are installed]")
@click.option("--at", multiple=True, metavar="DIM=SIZES", callback=sizes, help="Sizes of a dimension: batch=1,8.")
@click.option(
    "--input", "-i", "inputs", multiple=True, metavar="SPEC", help="x=x.npy, data.npz, x=float32[1,3,224,224]; repeat."
)
@library_option
@click.option("--plot", metavar="FILE", help="Write a picture of times and losses: tuning.svg.")
@page_option
@click.option("--seed", default=0, show_default=True, help="Seed for made-up inputs, weights and the order of turns.")
@click.option("--trust", is_flag=True, help="Load a .pt or .pt2 that runs code when loaded.")
@common
def command(
    model: str,
    output: str,
    engines: str | None,
    inputs: tuple[str, ...],
    plot: str | None,
    page: str | None,
    as_json: bool,
    quiet: bool,
    seed: int,
    **options: Any,
) -> None:
    """Find the fastest way to run MODEL on this machine: engine, precision, optimizations, threads and options.

    MODEL is an ONNX file, or a PyTorch model as for `torchport export`. Each candidate is measured beside the model
    as given, and its outputs are compared. The best so far is always in FOLDER: after Ctrl-C or a kill, the same
    command goes on. `tp.session("FOLDER")` opens it.

    \b
    torchport tune model.onnx -o best/ --budget 2m
    torchport tune model.onnx -o best/ --tolerance 1% --data samples/
    """
    with progress(quiet or as_json) as say:
        say("loading")
        from torchport.benchmark.bench_plot import check_plot
        from torchport.optimization.tuning import tune

        if plot is not None:
            check_plot(plot)
        check_page(page)
        names = None if engines is None else [name.strip() for name in engines.split(",")]
        given = _inputs(model, inputs, seed)
        tuning = tune(model, output, engines=names, inputs=given, seed=seed, progress=say, **options)
    if plot is not None:
        tuning.plot(plot)
    write_page(page, tuning.model, tuning)
    if as_json:
        print_json(tuning)
    else:
        click.echo(str(tuning))
    if tuning.interrupted:
        raise click.exceptions.Exit(130)


def _inputs(model: str, texts: tuple[str, ...], seed: int) -> Any:
    """Return the inputs of an ONNX file, or the example inputs of a PyTorch model."""
    if not texts:
        return None
    from torchport.conversion.verify import is_onnx

    if is_onnx(model):
        from torchport.benchmark.feeds import inputs_of
        from torchport.cli import run
        from torchport.files import onnx_files

        return run.read(inputs_of(onnx_files.load(model)), texts, seed)
    from torchport.capture.inputs import build_inputs
    from torchport.inputs.spec import parse_input

    args, kwargs = build_inputs([parse_input(text) for text in texts], seed=seed)
    return kwargs or args
