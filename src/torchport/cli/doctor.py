"""torchport doctor"""

from __future__ import annotations

import click

from torchport.cli.output import common, print_json, progress


@click.command("doctor", short_help="Show versions, engines, CPU features, and what is missing.")
@common
def command(as_json: bool, quiet: bool) -> None:
    """Show versions, engines and CPU features, what is missing and how to get it. Exits 1 if something needed is."""
    with progress(quiet or as_json) as say:
        say("looking")
        from torchport.environment import doctor

        health = doctor()
    if as_json:
        print_json(health)
    else:
        click.echo(str(health))
    if not health.healthy:
        raise click.exceptions.Exit(1)
