"""torchport optimize FILE -o FAST"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import click

from torchport.cli.options import check_page, library_option, page_option, write_page
from torchport.cli.output import common, print_json, progress
from torchport.optimization.result import ONNXRUNTIME, Target


def fixed_sizes(context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> dict[str, int]:
    """Read --fix batch=1 or --fix batch=1,height=224."""
    found: dict[str, int] = {}
    for part in (part.strip() for text in texts for part in text.split(",")):
        name, _, size = part.rpartition("=")
        if not name or not size.isdecimal() or int(size) < 1:
            raise click.BadParameter(f"'{part}' is not DIMENSION=SIZE")
        if found.get(name, int(size)) != int(size):
            raise click.BadParameter(f"'{name}' cannot be {found[name]} and {size}")
        found[name] = int(size)
    return found


@click.command("optimize", short_help="Make a model smaller and faster; prove it stayed right.")
@click.argument("file", metavar="FILE")
@click.option("--output", "-o", required=True, metavar="FAST", help="Where to save the optimized model.")
@click.option(
    "--for",
    "target",
    type=click.Choice(get_args(Target)),
    default=ONNXRUNTIME,
    show_default=True,
    help="The engine it is for; portable keeps to ONNX's own operators.",
)
@click.option("--fix", multiple=True, metavar="DIM=SIZE", callback=fixed_sizes, help="Fix dimensions: batch=1.")
@click.option(
    "--input",
    "-i",
    "inputs",
    multiple=True,
    metavar="SPEC",
    help="Verify with these: x=x.npy, data.npz, x=float32[1,3,224,224]; repeat.",
)
@click.option("--try", "simplifiers", metavar="A,B", help="Try onnxslim, onnxsim too, under the same rules.")
@click.option("--no-measure", is_flag=True, help="Keep fusions without measuring whether they are faster.")
@click.option("--seed", default=0, show_default=True, help="Seed for made-up inputs.")
@page_option
@library_option
@common
def command(
    file: str,
    output: str,
    target: str,
    fix: dict[str, int],
    inputs: tuple[str, ...],
    simplifiers: str | None,
    no_measure: bool,
    seed: int,
    page: str | None,
    libraries: tuple[str, ...],
    as_json: bool,
    quiet: bool,
) -> None:
    """Optimize the model in FILE by passes, prove that it gives the same outputs, and save it.

    A pass that fails or changes an output is rolled back and named with the node; the others go on. Exits 1 if nothing
    could be verified: nothing is saved then.

    \b
    torchport optimize model.onnx -o fast.onnx
    torchport optimize model.onnx -o fast.onnx --for portable --fix batch=1
    """
    with progress(quiet or as_json) as say:
        say("loading")
        from torchport.optimization.optimizing import optimize

        check_page(page)
        done = optimize(
            file,
            output=output,
            target=target,  # type: ignore[arg-type]  # click has checked it
            fix=fix,
            inputs=_read(file, inputs, seed) if inputs else None,
            measure=not no_measure,
            simplifiers=[name.strip() for name in simplifiers.split(",")] if simplifiers else (),
            libraries=_loaded(libraries) if libraries else (),
            progress=say,
        )
    write_page(page, output, done)
    if as_json:
        print_json(done)
    else:
        click.echo(str(done))


# Imported where they are needed: they take as long as all the rest.


def _read(file: str, texts: tuple[str, ...], seed: int) -> Mapping[str, Any]:
    from torchport.benchmark.feeds import inputs_of
    from torchport.cli import run
    from torchport.files import onnx_files

    return run.read(inputs_of(onnx_files.load(file)), texts, seed)


def _loaded(libraries: tuple[str, ...]) -> list[str]:
    from torchport.cli.ops import load_libraries

    return load_libraries(libraries)
