"""torchport cpp FILE"""

from __future__ import annotations

import click

from torchport.cli.ops import load_libraries
from torchport.cli.options import library_option
from torchport.cli.output import common, print_json, progress
from torchport.cli.run import read
from torchport.engines.registry import DEFAULT


@click.command("cpp", short_help="Write a C++ project that runs a model.")
@click.argument("file", metavar="FILE")
@click.option("--output", "-o", required=True, metavar="FOLDER", help="The folder to make.")
@click.option(
    "--input",
    "-i",
    "inputs",
    multiple=True,
    metavar="SPEC",
    help="The golden inputs: x=x.npy, data.npz, x=float32[1,3,224,224]; repeat for each.  [default: made up]",
)
@click.option(
    "--engine", default=DEFAULT, show_default=True, metavar="NAME", help="What runs the model: onnxruntime or openvino."
)
@library_option
@click.option("--build", is_flag=True, help="Build and test it: the bits must be those of Python.")
@click.option("--seed", default=0, show_default=True, help="Seed for made-up inputs.")
@common
def command(
    file: str,
    output: str,
    inputs: tuple[str, ...],
    engine: str,
    libraries: tuple[str, ...],
    build: bool,
    seed: int,
    as_json: bool,
    quiet: bool,
) -> None:
    """Write a C++ project for the ONNX model FILE: structs for its inputs and outputs, a program, CMake, a golden
    input and output, and a test.

    \b
    torchport cpp model.onnx -o app
    cd app && cmake -B build && cmake --build build && ctest --test-dir build
    """
    with progress(quiet or as_json) as say:
        say("loading")
        from torchport.bundles.cpp_project import cpp_project
        from torchport.engines.session import open_session

        given = load_libraries(libraries)
        feeds = read(open_session(file, engine, libraries=given).inputs, inputs, seed) if inputs else None
        say("writing the project, building it" if build else "writing the project")
        project = cpp_project(file, output, inputs=feeds, engine=engine, libraries=given, build=build)
    if as_json:
        print_json(project)
        return
    click.echo(str(project))
