"""torchport edit FILE"""

from __future__ import annotations

import dataclasses
import textwrap
from typing import Any

import click

from torchport.cli.ops import load_libraries
from torchport.cli.options import library_option
from torchport.cli.output import common, print_json, progress
from torchport.editing.registry import EDITS, Edit

_WIDTH = 80
_NEW_ANSWERS = ("preprocess", "postprocess", "set-weights", "set-dtype", "to-input", "to-constant", "chain", "merge")


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
        from torchport.editing.recipe import from_text, read_steps

        steps = []
        for kind, text in ctx.meta["torchport.edits"]:
            steps += read_steps(text) if kind is None else [from_text(kind, text)]
        if not steps:
            raise click.UsageError("no edit is given; torchport edit --help lists them")
        say("loading")
        done, proof = _run(file, output, steps, say, _Verifying(inputs, libraries) if verify else None)
    if as_json:
        print_json({"path": output, "edits": done, "proof": proof})
        return
    for one in done:
        _show(one)
    click.echo(str(proof) if proof is not None else "not verified: --verify proves that it answers as before")
    click.echo(f"saved to {output}")


def _show(done: dict[str, Any]) -> None:
    from torchport.terminal import shortened

    count = f": {done['changed']} changed"
    click.echo(shortened(done["edit"], _WIDTH - len(count)) + count)
    if done["left"]:
        places = "a place was" if len(done["left"]) == 1 else f"{len(done['left'])} places were"
        text = f"{places} left as before: {done['left'][0]}"
        click.echo(textwrap.fill(text, _WIDTH, initial_indent="· ", subsequent_indent="  "))


@dataclasses.dataclass(frozen=True)
class _Verifying:
    inputs: tuple[str, ...]
    libraries: tuple[str, ...]


def _run(file: str, output: str, steps: list[Any], say: Any, verifying: _Verifying | None) -> Any:
    from torchport.files import onnx_files
    from torchport.files.filesystem import check_target
    from torchport.irtools.metadata import PROOF

    check_target(output)
    model = onnx_files.load(file)
    done = _apply(model, steps, say)
    proof = None
    if verifying is not None:
        say("proving")
        proof = _prove(file, model, steps, verifying)
    elif any(one["changed"] and not step.edit.same for one, step in zip(done, steps, strict=True)):
        model.metadata_props.pop(PROOF, None)  # what was proven was proven of the model before
    say("saving")
    onnx_files.save(model, output)
    return done, proof


def _apply(model: Any, steps: list[Any], say: Any) -> Any:
    from torchport.editing.recipe import apply, passed_over, told
    from torchport.errors import TorchportError

    done = []
    for step in steps:
        say(f"editing: {step.edit.name}")
        try:
            left = passed_over(model, step)
            changed = apply(model, _with_state_dict(step))
        except TorchportError as error:
            raise told(error, step) from error
        done.append({"edit": str(step), "changed": changed, "left": left})
    return done


def _prove(file: str, model: Any, steps: list[Any], verifying: _Verifying) -> Any:
    from torchport.cli import run
    from torchport.engines.session import open_session
    from torchport.errors import ProofError
    from torchport.files import onnx_files
    from torchport.verification.equivalence import prove_same

    libraries = load_libraries(verifying.libraries)
    given = None
    if verifying.inputs:
        given = run.read(open_session(model, libraries=libraries), verifying.inputs, seed=0)
    proof = prove_same(onnx_files.load(file), model, inputs=given, libraries=libraries)
    if not proof.passed:
        meant = [step.edit.name for step in steps if step.edit.name in _NEW_ANSWERS]
        hint = f"; run --{meant[0]} without --verify: it changes answers" if meant else ""
        raise ProofError(
            "the changed model does not answer as before", proof=proof, next_step=f"nothing was saved{hint}"
        )
    return proof


def _with_state_dict(step: Any) -> Any:
    """PyTorch's files are read here: the graph knows no torch."""
    source = step.value.get("source") if step.edit.name == "set-weights" else None
    if not str(source).endswith((".pt", ".pth", ".bin")):
        return step
    return dataclasses.replace(step, value={**step.value, "source": _state_dict(str(source))})


def _state_dict(path: str) -> Any:
    import torch

    from torchport.errors import FileError

    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise FileError("the file is missing", where=path, next_step="check the path") from error
    except Exception as error:  # torch.load has no class of error of its own
        raise FileError("it holds no weights that can be read safely", where=path, next_step=_SAVE_WEIGHTS) from error
    state = state.get("state_dict", state) if isinstance(state, dict) else state
    if not isinstance(state, dict) or not all(isinstance(v, torch.Tensor) for v in state.values()):
        raise FileError("it holds no state dict", where=path, next_step=_SAVE_WEIGHTS)
    return state


_SAVE_WEIGHTS = "save them with torch.save(model.state_dict(), path)"
command.params[1:1] = [_RECIPE, *(_option(e) for e in EDITS.values())]
