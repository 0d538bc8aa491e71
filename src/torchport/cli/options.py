"""Options that say which model and which inputs, shared by the verbs that load PyTorch models."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

import click

from torchport.errors import InputError


def model_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--trust", is_flag=True, help="Load a .pt or .pt2 that runs code when loaded."),
        click.option("--seed", default=0, show_default=True, help="Seed for made-up inputs and weights."),
        click.option(
            "--input",
            "-i",
            "inputs",
            multiple=True,
            metavar="SPEC",
            help="x=float32[1,3,224,224], x=int64[2,8]@0..99, x=x.npy, data.npz, scale=2.0; repeat for each input.",
        ),
        click.option(
            "--dynamic",
            "-d",
            multiple=True,
            metavar="SPEC",
            help="x:0=batch, x:0=batch,2=height[32..512], x:2=8*height; repeat for each input.",
        ),
        click.option(
            "--mode",
            type=click.Choice(["eval", "train", "keep"]),
            default="eval",
            show_default=True,
            help="The mode the model is put into.",
        ),
    ):
        function = option(function)
    return function


def tolerance_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --rtol and --atol, each a number or a number by output."""
    for kind, what in (("rtol", "Relative"), ("atol", "Absolute, as a part of the output's largest number")):
        text = f"{what}: tolerance of the proof, 1e-3 or OUTPUT=1e-3.  [default: by dtype]"
        function = click.option(f"--{kind}", multiple=True, metavar="T", callback=_tolerance, help=text)(function)
    return function


def _tolerance(context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> dict[str, float] | None:
    found: dict[str, float] = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        try:
            found[name] = float(number)
        except ValueError:
            raise click.BadParameter(f"'{text}' is no number, nor OUTPUT=NUMBER") from None
    return found or None


page_option = click.option(
    "--report",
    "page",
    metavar="PAGE",
    help="Also write an HTML page with the result and the model's graph: report.html.",
)


def write_page(page: str | None, model: Any, *results: object) -> None:
    """Write the page of a model and what was found of it, if --report asks for one."""
    if page is not None:
        from torchport.reports.report import report

        click.echo(str(report(model, page, results=results)).splitlines()[0], err=True)


def check_page(page: str | None) -> None:
    """Say before long work if the page that --report asks for cannot be written."""
    if page is not None:
        from torchport.reports.report import check_page as check

        check(page)


library_option = click.option(
    "--library",
    "libraries",
    multiple=True,
    metavar="FILE",
    help="Operators you trust: a built library, or the .py that defines them.",
)


def engine_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --threads and --option, for the engine that runs a model."""
    for option in (
        click.option(
            "--option",
            "engine_options",
            multiple=True,
            metavar="NAME=VALUE",
            callback=named_values,
            help="An option of the engine, graph_optimization=basic say; docs/engines.md lists them.",
        ),
        click.option("--threads", type=int, metavar="N", help="Threads to compute with.  [default: the engine's]"),
    ):
        function = option(function)
    return function


def named_values(context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    for text in texts:
        if not all(text.partition("=")[::2]):
            raise click.BadParameter(f"'{text}' is not NAME=VALUE")
    return dict(text.split("=", 1) for text in texts)


def load(model: str, *, seed: int, trust: bool) -> Any:
    """Load the model named on the command line.

    Random numbers are seeded first: a class that draws its weights gets the same ones in `export` and in `verify`.
    """
    import random

    import numpy as np
    import torch

    from torchport.capture.sources import load_source

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    with contextlib.redirect_stdout(sys.stderr):  # what the user's file prints is no part of the result
        return load_source(model, trust=trust)


def gather(
    source: Any, inputs: tuple[str, ...], seed: int, *, required: bool = True
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Example inputs: from --input, else from example_inputs() beside the model, else none."""
    from torchport.capture.inputs import build_inputs, from_example
    from torchport.capture.sources import running_user_code
    from torchport.inputs.spec import parse_input

    if inputs:
        return build_inputs([parse_input(text) for text in inputs], seed=seed)
    if source.example_inputs is not None:
        with running_user_code("example_inputs() failed"), contextlib.redirect_stdout(sys.stderr):
            return from_example(source.example_inputs())
    if required and not hasattr(source.model, "example_inputs"):
        raise InputError(
            "no example inputs: the model cannot be run without",
            where=source.label,
            next_step="give --input x=float32[1,3,224,224], or write example_inputs() beside the model",
        )
    return (), {}
