"""torchport view FILE"""

from __future__ import annotations

import webbrowser

import click

from torchport.cli.output import common, print_json, progress


@click.command("view", short_help="Show a model in the browser, and cut parts out of it.")
@click.argument("file", metavar="FILE")
@click.option("--port", type=int, default=0, metavar="N", help="Of the address.  [default: any that is free]")
@click.option("--no-browser", is_flag=True, help="Print the address only.")
@common
def command(file: str, port: int, no_browser: bool, as_json: bool, quiet: bool) -> None:
    """Show the ONNX model FILE in the browser, until Ctrl-C.

    Only who is on this machine and knows the address sees it. The page can save parts that are cut out by hand.

    \b
    torchport view model.onnx
    """
    with progress(quiet or as_json) as say:
        say("reading the model")
        from torchport.reports.viewing import view

        viewing = view(file, port=port)
    with viewing:
        try:
            if as_json:
                print_json({"url": viewing.url})
            else:
                click.echo(f"{viewing.url}\nCtrl-C ends it")
            if not no_browser:
                webbrowser.open(viewing.url)
            viewing.wait()
        except KeyboardInterrupt:
            click.echo("ended", err=True)
