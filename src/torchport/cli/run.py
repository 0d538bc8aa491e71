"""torchport run FILE"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchport.cli.ops import load_libraries
from torchport.cli.options import engine_options, library_option
from torchport.cli.output import common, print_json, progress
from torchport.engines.registry import DEFAULT
from torchport.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchport.results import TensorInfo
    from torchport.tensors import Array


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
@click.option("--engine", default=DEFAULT, show_default=True, help="What runs the model.")
@engine_options
@library_option
@click.option("--seed", default=0, show_default=True, help="Seed for made-up inputs.")
@common
def command(
    file: str,
    inputs: tuple[str, ...],
    output: str | None,
    watch: tuple[str, ...],
    engine: str,
    threads: int | None,
    engine_options: dict[str, str],
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
        from torchport.editing.extract import expose
        from torchport.engines.session import open_session
        from torchport.inputs import arrays

        if output is not None:
            arrays.check_output(output)
        model = expose(file, watch) if watch else file
        paths = load_libraries(libraries)
        session = open_session(model, engine, threads=threads, options=engine_options, libraries=paths)
        feeds = read(session.inputs, inputs, seed)
        say("running")
        outputs = session.run(feeds)
    if output is not None:
        arrays.save(output, outputs)
    if as_json:
        shown = {n: arrays.summary(a) for n, a in outputs.items()}
        print_json({"outputs": shown, "path": output, "findings": session.findings})
        return
    for name in session.in_python:
        click.echo(f"note: {name} has no kernel; PyTorch ran it", err=True)
    for finding in session.findings:
        click.echo(f"note: {finding}", err=True)
    for name, array in outputs.items():
        click.echo(f"{name}: {arrays.one_line(array)}")
    if output is not None:
        click.echo(f"saved to {output}")


def read(infos: Sequence[TensorInfo], texts: tuple[str, ...], seed: int) -> dict[str, Array]:
    """The model's inputs from --input specs, by name or by position."""
    from torchport.inputs.binding import flat
    from torchport.inputs.create import create_named
    from torchport.inputs.spec import parse_input
    from torchport.tensors import is_torch, to_numpy

    names = [info.name for info in infos]
    specs = [parse_input(text, names) for text in texts]
    args, kwargs = create_named(specs, seed=seed, read_pt=_read_pt, names=names)
    free = [name for name in names if name not in kwargs]
    if len(args) > len(free):
        raise InputError(
            f"{len(args) + len(kwargs)} inputs given, the model has {len(infos)}",
            where=", ".join(map(str, infos)),
            next_step="give one --input for each",
        )
    feeds: dict[str, Any] = {**dict(zip(free, args, strict=False)), **flat(kwargs)}
    return {name: to_numpy(value) if is_torch(value) else value for name, value in feeds.items()}


def _read_pt(path: Path, name: str | None) -> tuple[list[Any], dict[str, Any]]:
    from torchport.capture.inputs import read_pt  # imports torch, which arrays from elsewhere do not need

    return read_pt(path, name)
