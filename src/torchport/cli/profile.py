"""torchport profile FILE"""

from __future__ import annotations

import click

from torchport.cli.engines import sizes
from torchport.cli.options import check_page, engine_options, library_option, page_option, write_page
from torchport.cli.output import common, print_json, progress
from torchport.engines.registry import DEFAULT


@click.command("profile", short_help="Show where the time of a model goes, down to the Python line.")
@click.argument("file", metavar="FILE")
@click.option("--engine", default=DEFAULT, show_default=True, help="What runs the model.")
@click.option("--at", multiple=True, metavar="DIM=SIZE", callback=sizes, help="Size of a dynamic dimension: batch=8.")
@click.option(
    "--input", "-i", "inputs", multiple=True, metavar="SPEC", help="x=x.npy, data.npz, x=float32[1,3,224,224]; repeat."
)
@engine_options
@library_option
@click.option("--top", type=click.IntRange(min=1), default=15, show_default=True, help="Rows of each table.")
@click.option("--tree", is_flag=True, help="Show modules as a tree.")
@click.option("--trace", metavar="FILE", help="Write the calls of one run for chrome://tracing and ui.perfetto.dev.")
@page_option
@click.option("--seconds", default=2.0, show_default=True, help="To measure for.")
@click.option("--seed", default=0, show_default=True, help="Seed for made-up inputs.")
@common
def command(
    file: str,
    engine: str,
    at: dict[str, int],
    inputs: tuple[str, ...],
    threads: int | None,
    engine_options: dict[str, str],
    libraries: tuple[str, ...],
    top: int,
    tree: bool,
    trace: str | None,
    page: str | None,
    seconds: float,
    seed: int,
    as_json: bool,
    quiet: bool,
) -> None:
    """Show where the time of the ONNX model FILE goes: by node, module, Python line and operator.

    Beside the times stand what the engine fused, how near each part is to the limits of this machine, and what to do
    about it, each with the time it could save.

    \b
    torchport profile model.onnx --at batch=8 --tree
    """
    with progress(quiet or as_json) as say:
        say("loading")
        from torchport.engines.options import check_threads
        from torchport.engines.profiling import check_profiles

        check_threads(threads)
        check_profiles(engine)
        check_page(page)
        from torchport.benchmark.profiling import profile
        from torchport.cli.ops import load_libraries
        from torchport.cli.run import read
        from torchport.files import onnx_files
        from torchport.irtools.types import tensor_infos

        graph = onnx_files.load(file).graph
        infos = tensor_infos(v for v in graph.inputs if not v.is_initializer())
        found = profile(
            file,
            engine=engine,
            inputs=read(infos, inputs, seed) if inputs else None,
            at=at,
            threads=threads,
            options=engine_options,
            libraries=load_libraries(libraries),
            seconds=seconds,
            trace=trace,
            progress=say,
        )
    write_page(page, file, found)
    if as_json:
        print_json(found)
        return
    click.echo(found.text(top=top, tree=tree))
    if trace is not None:
        click.echo(f"saved to {trace}")
