"""torchport ops find | show | list | coverage | new | build | test | headers"""

from __future__ import annotations

import contextlib
import shutil
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchport.cli.options import gather, load, model_options
from torchport.cli.output import common, print_json, progress

if TYPE_CHECKING:
    from torchport.conversion.operators import Coverage
    from torchport.operators.catalog import TorchOperator
    from torchport.operators.definition import Operator
    from torchport.operators.onnx_catalog import OnnxOperator


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
    from torchport.operators.definition import write_starter

    written = write_starter(name, Path(folder))
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
    import shutil

    from torchport.errors import OptionError, SaveError
    from torchport.files.filesystem import write_atomically

    different = set(libraries.values())
    if len(different) > 1:
        raise OptionError(f"the kernels are in {len(different)} libraries", next_step="build each .cc with its own -o")
    try:
        Path(output).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SaveError(
            f"the folder of '{output}' cannot be written: {error.strerror}", next_step="choose another path with -o"
        ) from error
    # A library that a process has open must not be written over
    write_atomically(output, lambda part: shutil.copyfile(different.pop(), part))


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
        from torchport.conversion.operators import test as compare

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
    from torchport.engines.custom_operators import library_paths

    libraries = [file for file in given if not file.endswith(".py")]
    library_paths(libraries)  # one that is not there is said before a model is loaded
    return libraries


# torchport ops find | show | list | coverage | new | build | test | headers

_MOST = 40  # names shown without --all


@click.group("ops", short_help="Look operators up, and define your own.")
def command() -> None:
    """Look operators up, and define your own.

    \b
    torchport ops find asinh
    torchport ops show aten::upsample_bicubic2d
    torchport ops show Resize
    torchport ops list --missing
    torchport ops coverage model.py:Net
    torchport ops new mylib::my_op
    torchport ops test my_op.py
    """


for own in (new, build, test, headers):
    command.add_command(own)


@command.command("find")
@click.argument("text")
@common
def find(text: str, as_json: bool, quiet: bool) -> None:
    """List operators of torch and ONNX with TEXT in their names."""
    with progress(quiet or as_json) as say:
        say("loading")
        from torchport.errors import OptionError
        from torchport.operators import catalog

        found = catalog.find(text)
        if not found:
            close = catalog.closest(text)
            raise OptionError(
                f"no operator has '{text}' in its name",
                next_step=f"did you mean {', '.join(close)}?" if close else "give a shorter part of the name",
            )
    if as_json:
        print_json({"operators": found})
    else:
        _print_names(found)


@command.command("show")
@click.argument("name")
@common
def show(name: str, as_json: bool, quiet: bool) -> None:
    """Show all there is to know of one operator: aten::asinh, asinh, Resize."""
    with progress(quiet or as_json) as say:
        say("loading")
        from torchport.operators import catalog

        found = catalog.show(name)
    if as_json:
        print_json(found)
    elif isinstance(found, catalog.TorchOperator):
        _print_lines(_torch_lines(found))
    else:
        _print_lines(_onnx_lines(found))


@command.command("list")
@click.option("--missing", is_flag=True, help="Only operators that no route maps.")
@click.option("--all", "everything", is_flag=True, help="Show every name, however many.")
@common
def list_(missing: bool, everything: bool, as_json: bool, quiet: bool) -> None:
    """List aten operators."""
    with progress(quiet or as_json) as say:
        say("loading")
        from torchport.operators import catalog

        found = catalog.missing() if missing else catalog.aten_names()
    if as_json:
        print_json({"operators": found})
    else:
        _print_names(found, everything=everything)


@command.command("coverage")
@click.argument("model", metavar="MODEL")
@model_options
@common
def coverage(
    model: str,
    inputs: tuple[str, ...],
    dynamic: tuple[str, ...],
    seed: int,
    trust: bool,
    mode: str,
    as_json: bool,
    quiet: bool,
) -> None:
    """List every operator MODEL uses, and whether it gets to ONNX. Exit code 1 if one does not."""
    with progress(quiet or as_json) as say:
        say("loading")
        from torchport.conversion.operators import coverage as cover

        source = load(model, seed=seed, trust=trust)
        args, kwargs = gather(source, inputs, seed)
        say("capturing")
        found = cover(source.model, args, kwargs=kwargs or None, dynamic=list(dynamic) or None)
    if as_json:
        print_json(found)
    else:
        _print_lines(_coverage_lines(found))
    if not found.supported:
        raise click.exceptions.Exit(1)


def _print_lines(lines: list[str]) -> None:
    """Long ones go on below, further in."""
    width = max(shutil.get_terminal_size().columns, 40)
    for line in lines:
        inner = " " * (len(line) - len(line.lstrip()) + 5)
        wrapped = textwrap.wrap(line, width, subsequent_indent=inner, break_long_words=False, drop_whitespace=True)
        click.echo("\n".join(wrapped or [""]))


def _print_names(names: list[str], *, everything: bool = False) -> None:
    shown = names if everything else names[:_MOST]
    click.echo("\n".join(shown))
    if len(names) > len(shown):
        click.echo(f"… and {len(names) - len(shown)} more; --all or --json shows them", err=True)


def _torch_lines(found: TorchOperator) -> list[str]:
    lines = [click.style(found.name, bold=True)]
    if found.calls:
        lines.append(f"  call   {', '.join(found.calls)}")
    lines += [f"  schema {schema}" for schema in found.schemas]
    for way in found.mappings:
        label = "" if way.overload in ("default", "any") else f".{way.overload}"
        lines.append(f"  {'/'.join(way.routes)}{label}: {_HOW[way.how]}")
        if way.onnx:
            lines.append(f"      to {', '.join(way.onnx)}" + (f", from opset {way.since}" if way.since else ""))
        if way.where:
            lines.append(f"      {way.where}")
    if not found.mappings:
        lines.append("  no route maps it")
        if found.alternatives:
            lines.append(f"  close: {', '.join(found.alternatives)}")
    return lines


_HOW = {
    "direct": "translated",
    "composed": "written in other torch operators, by torchport",
    "decomposed": "taken apart by torch; `ops coverage` tells for a model whether its parts get through",
}


def _onnx_lines(found: OnnxOperator) -> list[str]:
    lines = [click.style(f"{found.name} ({found.domain})", bold=True)]
    lines += [f"  {version:>3}  {change}" for version, change in found.versions]
    for title, entries in (("in", found.inputs), ("out", found.outputs), ("attr", found.attributes)):
        lines += [f"  {title:4} {entry}" for entry in entries]
    lines += [f"  type {entry}" for entry in found.types]
    for engine, kinds in found.engines.items():
        lines.append(f"  {engine}: {', '.join(kinds) if kinds else 'no kernel'}")
    if found.torch:
        lines.append(f"  from {', '.join(found.torch)}")
    return lines


def _coverage_lines(found: Coverage) -> list[str]:
    width = max((len(u.operator) for u in found.uses), default=0)
    lines = [f"{u.operator:{width}} {u.count:>5}  {_told(u)}" for u in found.uses]
    lost = [u for u in found.uses if u.missing]
    for use in lost:
        lines.append(
            f"missing: {', '.join(use.missing)}" + (f" (in {use.operator})" if use.missing != (use.operator,) else "")
        )
        lines += [f"    {line}" for line in use.lines[:3]]
        if use.alternatives:
            lines.append(f"    close: {', '.join(use.alternatives)}")
    verdict = "all of them get to ONNX" if found.supported else f"{len(lost)} of {len(found.uses)} do not get to ONNX"
    return [*lines, f"{len(found.uses)} operators, {verdict} ({found.note})"]


def _told(use: Any) -> str:
    if use.missing:
        return "missing"
    return f"{use.how}" + (f": {', '.join(use.onnx[:4])}" if use.onnx else "")
