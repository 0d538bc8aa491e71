"""torchport rewrite MODEL"""

from __future__ import annotations

import click

from torchport.cli.options import gather, load, model_options
from torchport.cli.output import common, print_json, progress


@click.command("rewrite", short_help="Show a model's source with control flow on tensors rewritten.")
@click.argument("model", metavar="MODEL")
@model_options
@common
def command(
    model: str,
    inputs: tuple[str, ...],
    dynamic: tuple[str, ...],
    seed: int,
    trust: bool,
    mode: str,
    as_json: bool,
    quiet: bool,
) -> None:
    """Show the source of MODEL as the route `rewrite` captures it. Nothing is changed.

    With example inputs only what a capture stumbles over is rewritten, without them all that looks as if it depended
    on a tensor.

    \b
    torchport rewrite model.py:Net
    torchport rewrite model.py:Net --input x=float32[3,8] --dynamic x:0=batch
    """
    with progress(quiet or as_json) as say:
        say("loading")
        from torchport.conversion.rewrite import rewrite

        source = load(model, seed=seed, trust=trust)
        args, kwargs = gather(source, inputs, seed, required=False)
        say("rewriting")
        given = args if args or kwargs else None
        text = rewrite(source.model, given, kwargs=kwargs or None, dynamic=list(dynamic) or None)
    if as_json:
        print_json({"source": text})
    else:
        click.echo(text, nl=False)
