"""torchport bench FILE..."""

from __future__ import annotations

from typing import Any

import click

from torchport.cli.options import check_page, library_option, named_values, page_option, write_page
from torchport.cli.output import common, print_json, progress


def sizes(context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> dict[str, list[int]]:
    """Read --at batch=1,8,height=64: a part without a name is another size of the dimension before it."""
    found: dict[str, list[int]] = {}
    for text in texts:
        name = ""
        for part in text.split(","):
            before, given, size = part.rpartition("=")
            name = before.strip() if given else name
            if not name or not size.strip().isdecimal():
                raise click.BadParameter(f"'{part}' is not DIMENSION=SIZE")
            found.setdefault(name, []).append(int(size))
    return found


def numbers(context: click.Context, parameter: click.Parameter, text: str | None) -> list[int] | None:
    """Read --threads 1,2."""
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise click.BadParameter(f"'{text}' is no number, nor a list of numbers: 1,2,4") from None


@click.command("bench", short_help="Measure models and engines beside each other.")
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("--engines", metavar="A,B", help="What runs the models.  [default: onnxruntime]")
@click.option("--against", metavar="MODEL", help="The PyTorch model, as for `torchport export`: its outputs are right.")
@click.option("--at", multiple=True, metavar="DIM=SIZES", callback=sizes, help="Sizes of a dimension: batch=1,8.")
@click.option("--threads", metavar="N,M", callback=numbers, help="Threads to compute with.  [default: the engine's]")
@click.option("--clients", metavar="N,M", callback=numbers, help="Threads that call one session.  [default: 1]")
@click.option(
    "--input", "-i", "inputs", multiple=True, metavar="SPEC", help="x=x.npy, data.npz, x=float32[1,3,224,224]; repeat."
)
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    callback=named_values,
    help="An option of engines, graph_optimization=basic say; docs/engines.md lists them.",
)
@library_option
@click.option("--seconds", default=2.0, show_default=True, help="To measure each candidate for.")
@click.option("--processes", default=5, show_default=True, help="For each candidate; twice as many if it is noisy.")
@click.option("--plot", metavar="FILE", help="Write a picture: latency.svg.")
@page_option
@click.option("--seed", default=0, show_default=True, help="Seed for made-up inputs, weights and the order of turns.")
@click.option("--trust", is_flag=True, help="Load a .pt or .pt2 that runs code when loaded.")
@common
def command(
    files: tuple[str, ...],
    engines: str | None,
    against: str | None,
    clients: list[int] | None,
    inputs: tuple[str, ...],
    plot: str | None,
    page: str | None,
    as_json: bool,
    quiet: bool,
    seed: int,
    **options: Any,
) -> None:
    """Measure ONNX models beside each other: all FILEs in all engines with all numbers of threads.

    Candidates run in processes of their own and take turns; a difference within the noise is called none. Outputs are
    held against PyTorch's (--against) or ONNX Runtime's. Exits 1 unless every candidate is right.

    \b
    torchport bench model.onnx smaller.onnx --at batch=1,8 --threads 1
    torchport bench model.onnx --engines onnxruntime,openvino --clients 1,2,4
    """
    with progress(quiet or as_json) as say:
        say("loading")
        from torchport.benchmark.bench_plot import check_plot
        from torchport.benchmark.benchmarking import bench
        from torchport.benchmark.feeds import inputs_of
        from torchport.cli import run
        from torchport.files import onnx_files

        if plot is not None:
            check_plot(plot)
        check_page(page)
        feeds = run.read(inputs_of(onnx_files.load(files[0])), inputs, seed) if inputs else None
        names = None if engines is None else [name.strip() for name in engines.split(",")]
        asked: dict[str, Any] = {
            "engines": names,
            "clients": clients or 1,
            "inputs": feeds,
            "seed": seed,
            "progress": say,
        }
        table = bench(files, against, **asked, **options)
    if plot is not None:
        table.plot(plot)
    write_page(page, files[0], table)
    if as_json:
        print_json(table)
    else:
        click.echo(str(table))
    if table.interrupted:
        raise click.exceptions.Exit(130)
    if not table.agrees:
        raise click.exceptions.Exit(1)
