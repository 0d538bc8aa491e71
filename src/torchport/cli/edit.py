"""torchport edit FILE"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import click

from torchport.cli.ops import load_libraries
from torchport.cli.options import library_option
from torchport.cli.output import common, print_json, progress
from torchport.editing.registry import EDITS, Edit

if TYPE_CHECKING:
    from torchport.editing.recipe import Done

_WIDTH = 80


class InOrder(click.Command):
    """A command that knows in which order its edits were given: click groups the values of an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given, _, order = self.make_parser(ctx).parse_args(list(args))
        values = {name: iter(v) for name, v in given.items() if isinstance(v, list)}
        edits = [(str(p.name), next(values[str(p.name)])) for p in order if p.name in _KINDS]
        # click marks a value that was left out by an object of its own
        ctx.meta["torchport.edits"] = [(_KINDS[name], v if isinstance(v, str) else None) for name, v in edits]
        return super().parse_args(ctx, args)


def _option(edit: Edit) -> click.Option:
    without: dict[str, Any] = {}
    if edit.form in ("flag", "optional name"):
        without = {"is_flag": edit.form == "flag", "flag_value": ""}
    return click.Option(
        [f"--{edit.name}", _variable(edit)],
        multiple=True,
        metavar=edit.metavar or None,
        help=edit.help,
        expose_value=False,
        **without,
    )


def _variable(edit: Edit) -> str:
    return f"edit_{edit.name.replace('-', '_')}"


_RECIPE = click.Option(
    ["--recipe", "edit_recipe"], multiple=True, metavar="FILE", expose_value=False, help="Edits in a YAML file."
)
_KINDS: dict[str, Edit | None] = {"edit_recipe": None, **{_variable(e): e for e in EDITS.values()}}


@click.command("edit", cls=InOrder, short_help="Change a model: rename, bypass, replace, reshape, ...")
@click.argument("file", metavar="FILE")
@click.option("--output", "-o", required=True, metavar="FILE", help="Where to save it; FILE itself will do.")
@click.option("--verify", is_flag=True, help="Save it only if it answers as before.")
@click.option(
    "--input", "-i", "inputs", multiple=True, metavar="SPEC", help="For --verify: x=x.npy, x=int64[2,8]@0..99, n=3."
)
@library_option
@click.pass_context
@common
def command(
    ctx: click.Context,
    file: str,
    output: str,
    verify: bool,
    inputs: tuple[str, ...],
    libraries: tuple[str, ...],
    as_json: bool,
    quiet: bool,
) -> None:
    """Change the model FILE by edits, in the order they are given, and save it.

    \b
    torchport edit model.onnx --bypass FooOp --rename x=image -o out.onnx
    torchport edit model.onnx --set-dim x:0=batch --verify -o out.onnx
    torchport edit model.onnx --recipe changes.yaml -o out.onnx

    A value in braces is read as YAML, for all that an edit takes:
    --replace '{what: Erf, by: "my::Erf", attributes: {fast: 1}}'
    """
    with progress(quiet or as_json) as say:
        from torchport.editing.recipe import Verification, from_text, read_steps, run_steps
        from torchport.files import onnx_files
        from torchport.files.filesystem import check_target

        steps = []
        for kind, text in ctx.meta["torchport.edits"]:
            steps += read_steps(text) if kind is None else [from_text(kind, text)]
        if not steps:
            raise click.UsageError("no edit is given; torchport edit --help lists them")
        say("loading")
        check_target(output)
        verification = None
        if verify:
            paths = load_libraries(libraries)
            verification = Verification(lambda model: _inputs(model, inputs, paths), paths)
        done = run_steps(file, steps, verification, say)
        say("saving")
        onnx_files.save(done.model, output)
    if as_json:
        print_json({"path": output, **done.to_json()})
        return
    for one in done.edits:
        _show(one)
    click.echo(str(done.proof) if done.proof is not None else "not verified: --verify proves that it answers as before")
    click.echo(f"saved to {output}")


def _inputs(model: Any, specs: tuple[str, ...], libraries: Any) -> Any:
    from torchport.cli import run
    from torchport.engines.session import open_session

    return run.read(open_session(model, libraries=libraries).inputs, specs, seed=0) if specs else None


def _show(done: Done) -> None:
    from torchport.terminal import shortened

    count = f": {done.changed} changed"
    click.echo(shortened(done.edit, _WIDTH - len(count)) + count)
    if done.left:
        places = "a place was" if len(done.left) == 1 else f"{len(done.left)} places were"
        text = f"{places} left as before: {done.left[0]}"
        click.echo(textwrap.fill(text, _WIDTH, initial_indent="· ", subsequent_indent="  "))


command.params[1:1] = [_RECIPE, *(_option(e) for e in EDITS.values())]
