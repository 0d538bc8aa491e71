"""torchport engines FILE"""

from __future__ import annotations

from typing import Any

import click

from torchport.cli.options import engine_options, library_option
from torchport.cli.output import common, print_json, progress


def sizes(context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> dict[str, int]:
    """Read --at batch=8,height=64."""
    found: dict[str, int] = {}
    for text in (part for given in texts for part in given.split(",")):
        name, _, size = text.rpartition("=")
        if not name or not size.strip().isdecimal():
            raise click.BadParameter(f"'{text}' is not DIMENSION=SIZE")
        if found.setdefault(name.strip(), int(size)) != int(size):
            raise click.BadParameter(f"'{name}' has two sizes: {found[name.strip()]} and {size}")
    return found


@click.command("engines", short_help="Try a model in every engine: right or wrong, latency, memory.")
@click.argument("file", metavar="FILE")
@click.option("--against", metavar="MODEL", help="The PyTorch model, as for `torchport export`: its answers are right.")
@click.option("--engines", metavar="A,B", help="The engines to try.  [default: all that are here]")
@click.option("--at", multiple=True, metavar="DIM=SIZE", callback=sizes, help="Size of a dynamic dimension: batch=8.")
@click.option(
    "--input", "-i", "inputs", multiple=True, metavar="SPEC", help="x=x.npy, data.npz, x=float32[1,3,224,224]; repeat."
)
@engine_options
@click.option("--opsets", is_flag=True, help="Try every opset in which the model can be expressed.")
@click.option("--runtime", "runtimes", multiple=True, metavar="NAME==VERSION", help="onnxruntime==1.21.0; repeat.")
@click.option("--seconds", default=0.5, show_default=True, help="To measure each engine for.")
@library_option
@click.option("--seed", default=0, show_default=True, help="Seed for made-up inputs and weights.")
@click.option("--trust", is_flag=True, help="Load a .pt or .pt2 that runs code when loaded.")
@common
def command(
    file: str,
    against: str | None,
    engines: str | None,
    inputs: tuple[str, ...],
    as_json: bool,
    quiet: bool,
    seed: int,
    engine_options: dict[str, str],
    **options: Any,
) -> None:
    """Try the ONNX model FILE in every engine: a row an engine, each in a process of its own.

    An engine is right or wrong beside PyTorch (--against) or ONNX Runtime, refuses the model, or fails. For engines
    that are not installed, their published operator lists are read. Exits 1 unless every engine here is right.

    \b
    torchport engines model.onnx --against model.py:Net --at batch=8
    """
    with progress(quiet or as_json) as say:
        say("loading")
        from torchport.benchmark.try_engines import try_engines
        from torchport.cli import run
        from torchport.files import onnx_files
        from torchport.irtools.types import tensor_infos

        graph = onnx_files.load(file).graph
        infos = tensor_infos(v for v in graph.inputs if not v.is_initializer())
        feeds = run.read(infos, inputs, seed) if inputs else None
        names = None if engines is None else [name.strip() for name in engines.split(",")]
        asked: dict[str, Any] = {"engines": names, "inputs": feeds, "seed": seed, "options": engine_options}
        table = try_engines(file, against, progress=say, **asked, **options)
    if as_json:
        print_json(table)
    else:
        click.echo(str(table))
    if table.interrupted:
        raise click.exceptions.Exit(130)
    if not table.agrees:
        raise click.exceptions.Exit(1)
