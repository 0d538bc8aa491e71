"""torchport quantize FILE"""

from __future__ import annotations

from typing import Any

import click

from torchport.cli.engines import sizes
from torchport.cli.options import check_page, engine_options, library_option, page_option, write_page
from torchport.cli.output import common, print_json, progress
from torchport.engines.registry import DEFAULT


def limits(context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    """Read --max-drop 1% and --max-drop cosine=0.001."""
    found: dict[str, str] = {}
    for text in texts or ("1%",):
        kind, _, value = text.rpartition("=")
        if kind in found:
            raise click.BadParameter(f"there are two for {kind or 'the whole'}: {found[kind]} and {value}")
        found[kind] = value
    return found


@click.command("quantize", short_help="Make a model int8, within a limit of accuracy.")
@click.argument("file", metavar="FILE")
@click.option("--data", metavar="PATH", help="Calibration data: a folder of .npz, recorded calls.  [default: made up]")
@click.option("--output", "-o", required=True, metavar="FILE", help="The ONNX file to write.")
@click.option(
    "--scheme",
    default="static-int8",
    show_default=True,
    help="static-int8, dynamic-int8, int8-weights, int4-weights or float16.",
)
@click.option("--engine", default=DEFAULT, show_default=True, help="What it is quantized for, and measured in.")
@click.option(
    "--max-drop",
    multiple=True,
    metavar="DROP",
    callback=limits,
    help="1%, cosine=0.001, sqnr=30 (decibels), top1=2%; repeat for several.  [default: 1%]",
)
@click.option("--metric", metavar="FILE:NAME", help="Your own, metric.py:accuracy; then --max-drop is its drop.")
@click.option("--calibration", metavar="KIND", help="min-max, percentile, entropy or mse.  [default: the first two]")
@click.option("--per-channel/--per-tensor", default=True, show_default=True, help="How many scales a weight has.")
@click.option("--symmetric/--asymmetric", default=None, help="The zero of activations is at 0.  [default: quantizer's]")
@click.option("--block", type=int, metavar="N", help="Weights that share a scale, for int8-weights and int4-weights.")
@click.option("--method", metavar="KIND", help="How weights are rounded to int4: rtn, hqq or gptq.  [default: rtn]")
@click.option("--at", multiple=True, metavar="DIM=SIZE", callback=sizes, help="Size of a dimension, for made-up data.")
@engine_options
@library_option
@click.option("--seconds", default=2.0, show_default=True, help="To measure each model for; 0 for no time at all.")
@page_option
@click.option("--seed", default=0, show_default=True, help="Seed for made-up data.")
@common
def command(
    file: str,
    metric: str | None,
    engine_options: dict[str, str],
    libraries: tuple[str, ...],
    page: str | None,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Quantize the ONNX model FILE for an engine.

    Every fourth sample is not calibrated on; the model is held against the float one there. The layers that hurt most
    are left in float, as few as needed. Nothing is written that loses more than --max-drop, or is slower: exit 1.

    \b
    torchport quantize model.onnx --data samples/ -o int8.onnx --max-drop 1%
    torchport quantize model.onnx --data samples/ -o int8.onnx --engine openvino
    """
    with progress(quiet or as_json) as say:
        say("loading")
        check_page(page)
        from torchport.cli.ops import load_libraries
        from torchport.optimization.quantizing import quantize

        found = quantize(
            file,
            metric=_metric(metric) if metric is not None else None,
            options=engine_options,
            libraries=load_libraries(libraries),
            progress=say,
            **options,
        )
    write_page(page, found.path, found)
    if as_json:
        print_json(found)
    else:
        click.echo(str(found))


def _metric(text: str) -> Any:
    """Load ``metric.py:accuracy``."""
    from pathlib import Path

    from torchport.capture.sources import import_file, split_spec
    from torchport.errors import OptionError

    place, name = split_spec(text)
    found = getattr(import_file(Path(place)), name, None) if name and Path(place).is_file() else None
    if not callable(found):
        raise OptionError(
            f"there is no function '{text}'", where=f"--metric {text}", next_step="give FILE.py:NAME of a function"
        )
    return found
