"""torchport ops new | build | test | headers: operators of one's own."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from torchport.cli.show import common, print_json, progress

if TYPE_CHECKING:
    from torchport.operators.definition import Operator

include_option = click.option(
    "--ort-include", metavar="FOLDER", help="ONNX Runtime's C++ headers.  [default: found, see `torchport doctor`]"
)


@click.command("new")
@click.argument("name")
@click.option("--folder", default=".", show_default=True, metavar="FOLDER", help="Where to write the files.")
@common
def new(name: str, folder: str, as_json: bool, quiet: bool) -> None:
    """Write a working starter for the operator NAME: PyTorch code, lowering, kernel in C++, test.

    \b
    torchport ops new mylib::my_op
    """
    from torchport.operators.new_operator import start

    written = start(name, Path(folder))
    if as_json:
        print_json({"files": [str(p) for p in written]})
        return
    for path in written:
        click.echo(f"wrote {path}")
    if not quiet:
        click.echo(f"next:  torchport ops test {written[0]}", err=True)


@click.command("build")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--again", is_flag=True, help="Compile even if nothing changed.")
@click.option("--output", "-o", metavar="FILE", help="Copy the library there, to ship it.")
@include_option
@common
def build(
    files: tuple[str, ...], again: bool, output: str | None, ort_include: str | None, as_json: bool, quiet: bool
) -> None:
    """Compile kernels: of C++ files into one library, or of a .py that defines operators."""
    with progress(quiet or as_json) as say:
        from torchport.engines.onnxruntime import kernel_libraries
        from torchport.errors import OptionError

        if all(file.endswith((".cc", ".cpp", ".cxx")) for file in files):
            say("compiling")
            libraries = {Path(files[0]).stem: kernel_libraries.build(files, include=ort_include, again=again)}
        else:
            own = [op for file in files for op in defined_in(file) if op.has_kernel]
            say("compiling")
            libraries = _by_domain(own, ort_include, again)
            if not own:
                raise OptionError(
                    f"no operator of {', '.join(files)} has a kernel", next_step='give one: my_op.kernel("my_op.cc")'
                )
        if output is not None:
            _copy(libraries, output)
    if as_json:
        print_json({"libraries": {name: output or str(path) for name, path in libraries.items()}})
        return
    for name, path in libraries.items():
        click.echo(f"{name}: {output or path}")


def _by_domain(own: list[Operator], include: str | None, again: bool) -> dict[str, Path]:
    """The library of each operator: the kernels of one domain are in one."""
    from torchport.operators import definition

    found: dict[str, Path] = {}
    for op in own:
        domain = str(op.node_name).partition("::")[0]
        together = [o for o in own if o.has_sources and str(o.node_name).partition("::")[0] == domain]
        found[op.name] = definition.libraries(together if op.has_sources else [op], include=include, again=again)[0]
    return found


def _copy(libraries: dict[str, Path], output: str) -> None:
    import os
    import shutil

    from torchport.errors import OptionError, SaveError

    different = set(libraries.values())
    if len(different) > 1:
        raise OptionError(f"the kernels are in {len(different)} libraries", next_step="build each .cc with its own -o")
    scratch = f"{output}.{os.getpid()}"  # a library that a process has open must not be written over
    try:
        Path(output).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(different.pop(), scratch)
        os.replace(scratch, output)
    except OSError as error:
        raise SaveError(f"the library cannot be written to '{output}': {error.strerror}") from error


@click.command("test")
@click.argument("file")
@common
def test(file: str, as_json: bool, quiet: bool) -> None:
    """Compare the kernel and the lowering of each operator of FILE with PyTorch, and time them.

    Exits 1 if one differs.
    """
    with progress(quiet or as_json) as say:
        say("loading")
        own = defined_in(file)
        from torchport.conversion.operator_test import test as compare

        trials = []
        for op in own:
            say(f"{op.name}: trying")
            trials += compare(op)
    if as_json:
        print_json({"trials": trials})
    else:
        for name in dict.fromkeys(t.operator for t in trials):
            click.echo(name)
            for trial in (t for t in trials if t.operator == name):
                click.echo(f"  {trial}")
        wrong = sum(not t.right for t in trials)
        click.echo(f"{len(trials)} trials, {wrong} wrong" if wrong else f"{len(trials)} trials, all right")
    if any(not t.right for t in trials):
        raise click.exceptions.Exit(1)


@click.command("headers")
@click.option("--fetch", is_flag=True, help="Take them out of Debian's package, without installing it.")
@include_option
@common
def headers(fetch: bool, ort_include: str | None, as_json: bool, quiet: bool) -> None:
    """Show which C++ headers of ONNX Runtime kernels are compiled against; --fetch gets them."""
    with progress(quiet or as_json) as say:
        from torchport.engines.onnxruntime import headers as found_by

        if fetch:
            say("fetching")
        found = found_by.fetch() if fetch else found_by.find(ort_include)
    if as_json:
        print_json(found)
    else:
        click.echo(f"{found.folder} ({found.source}), API {found.api}")


def defined_in(file: str) -> list[Operator]:
    """The operators a Python file defines. Its code runs, as it would under `python`."""
    from torchport.capture.sources import import_file
    from torchport.errors import OptionError
    from torchport.operators import definition

    if not file.endswith(".py") or not Path(file).is_file():
        raise OptionError(f"there is no file '{file}' of operators", next_step="give a .py that uses @tp.operator")
    before = definition.defined()
    with contextlib.redirect_stdout(sys.stderr):  # what the user's file prints is no part of the result
        import_file(Path(file))
    own = [op for name, op in definition.defined().items() if before.get(name) is not op]
    if not own:
        raise OptionError(f"{file} defines no operator", next_step='use @tp.operator("mylib::my_op")')
    return own


def load_libraries(given: tuple[str, ...]) -> list[str]:
    """Libraries as they are; Python files that define operators are run, and bring their own."""
    for file in given:
        if file.endswith(".py"):
            defined_in(file)
    return [file for file in given if not file.endswith(".py")]
