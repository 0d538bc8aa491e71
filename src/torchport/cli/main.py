"""The command line: a group whose verbs are imported when called, so that --help is instant."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

import click

from torchport._version import __version__

if TYPE_CHECKING:
    from torchport.errors import OptionError

# verb: one-line help. The code of a verb is cli/<verb>.py, a click command called `command`.
VERBS = {
    "export": "Export a PyTorch model to ONNX and prove it right.",
    "verify": "Prove an existing ONNX file against its PyTorch source.",
    "compare": "Find where two models, or engines, give other numbers.",
    "reduce": "Find the smallest part of a model that still fails a check.",
    "record": "Run a program and save what it feeds its model.",
    "rewrite": "Show a model's source with control flow on tensors rewritten.",
    "ops": "Look operators up, and define your own.",
    "cut": "Cut a part out of a model, by tensors or by module.",
    "split": "Split a model into consecutive parts.",
    "edit": "Change a model: rename, bypass, replace, reshape, ...",
    "inspect": "Show what an ONNX model is made of.",
    "diff": "Show what differs between two ONNX models.",
    "lint": "List every fault of an ONNX model.",
    "engines": "Try a model in every engine: right or wrong, latency, memory.",
    "bench": "Measure models and engines beside each other.",
    "profile": "Show where the time of a model goes, down to the Python line.",
    "optimize": "Make a model smaller and faster; prove it stayed right.",
    "report": "Write one HTML page that shows a model, its errors and its time.",
    "quantize": "Make a model int8, within a limit of accuracy.",
    "tune": "Find the fastest way to run a model here, and save it.",
    "view": "Show a model in the browser, and cut parts out of it.",
    "run": "Run an ONNX model on given inputs.",
    "cpp": "Write a C++ project that runs a model.",
    "doctor": "Show versions, engines, CPU features, and what is missing.",
}


class NoVerbError(click.UsageError):
    """The first word names no verb; `next_step` has the verb that is most like it, or all of them."""

    def __init__(self, name: str, next_step: str, ctx: click.Context) -> None:
        super().__init__(f"there is no verb '{name}'", ctx)
        self.next_step = next_step

    def format_message(self) -> str:
        return f"{self.message}; {self.next_step}"


class LazyGroup(click.Group):
    """Lists verbs without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        return import_module(f"torchport.cli.{cmd_name}").command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        from torchport.errors import did_you_mean

        if args and args[0] not in VERBS and not args[0].startswith("-"):
            raise NoVerbError(args[0], did_you_mean(args[0], VERBS, f"verbs: {', '.join(VERBS)}", most=1), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="torchport")
def cli() -> None:
    """Take a PyTorch model to ONNX, prove the answers are the same, and run it.

    \b
    torchport export model.py:Net --input x=float32[1,3,224,224] \\
        --dynamic x:0=batch -o model.onnx
    torchport VERB --help tells more.
    """


def main() -> None:
    """Entry point. Exit codes: 0 done and proven, 1 model refused, 2 a mistake in the call, 130 interrupted."""
    try:
        code = cli(prog_name="torchport", standalone_mode=False)  # click gives the code of an Exit back as a value
        sys.exit(code if isinstance(code, int) else 0)
    except click.ClickException as error:
        from torchport.cli.output import print_error

        print_error(_as_option_error(error), "--json" in sys.argv)
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted; nothing was written", err=True)
        sys.exit(130)


def _as_option_error(error: click.ClickException) -> OptionError:
    """Return what click found wrong with the call in the form of torchport's own errors."""
    from torchport.errors import OptionError

    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "torchport"
    if isinstance(error, NoVerbError):
        return OptionError(error.message, where=path, next_step=error.next_step)
    what = error.format_message().removesuffix(".")
    return OptionError(what, where=path, next_step=f"{path} --help shows how it is called")
