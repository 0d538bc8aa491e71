"""What every verb shares: error output, progress, JSON."""

from __future__ import annotations

import functools
import json
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from torchport.errors import ProofError, RefusedError, TorchportError
from torchport.results import SCHEMA, Record, to_json


def common(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options every verb has, and errors in three short lines instead of a traceback."""

    @click.option("--json", "as_json", is_flag=True, help="Print the result for machines.")
    @click.option("--quiet", "-q", is_flag=True, help="Hide progress.")
    @click.option("--debug", is_flag=True, help="Show tracebacks.")
    @functools.wraps(function)
    def wrapped(*args: Any, as_json: bool, quiet: bool, debug: bool, **kwargs: Any) -> Any:
        try:
            return function(*args, as_json=as_json, quiet=quiet, **kwargs)
        except TorchportError as error:
            if debug:
                traceback.print_exc()
            print_error(error, as_json)
            raise click.exceptions.Exit(error.exit_code) from error

    return wrapped


def print_error(error: TorchportError, as_json: bool) -> None:
    """Print what happened, where, and what to do next: as JSON, or in words on standard error."""
    if as_json:
        print_json(
            {
                "error": type(error).__name__,
                "what": error.what,
                "where": error.where,
                "next": error.next_step,
                "attempts": getattr(error, "attempts", ()),
                "proof": getattr(error, "proof", None),
                "blockers": getattr(error, "blockers", ()),
                "nearest": getattr(error, "nearest", None),
            }
        )
        return
    if isinstance(error, ProofError):
        click.echo(str(error.proof), err=True)
    label = click.style("refused" if isinstance(error, RefusedError) else "error", fg="red", bold=True)
    click.echo(f"{label}: {error}", err=True)


def print_json(value: Record | dict[str, Any]) -> None:
    """Print a record, or a dict that holds records, in the JSON form of `results.py`."""
    fields = value.to_json() if isinstance(value, Record) else {"schema": SCHEMA, **to_json(value)}
    click.echo(json.dumps(fields, indent=2, allow_nan=False))


@contextmanager
def progress(quiet: bool) -> Iterator[Callable[[str], None]]:
    """A line for each step: a spinner on a terminal, plain lines for attempts elsewhere."""
    if quiet:
        yield lambda text: None
        return
    if not sys.stderr.isatty():
        yield lambda text: click.echo(text, err=True)
        return
    from rich.console import Console

    from torchport.results import AttemptLine

    console = Console(stderr=True, highlight=False)
    with console.status("starting") as status:

        def say(text: str) -> None:
            if isinstance(text, AttemptLine):
                console.print(text, markup=False)
            else:
                status.update(text)

        yield say
