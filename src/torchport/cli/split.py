"""torchport split FILE"""

from __future__ import annotations

from pathlib import Path

import click

from torchport.cli.cut import names, show_part
from torchport.cli.output import common, print_json, progress


@click.command("split", short_help="Split a model into consecutive parts.")
@click.argument("file", metavar="FILE")
@click.option("--at", metavar="A,B", help="Tensors at which a part ends, in the order of the graph.")
@click.option("--parts", type=int, help="A number of parts of even cost instead.")
@click.option("--output", "-o", required=True, metavar="FILE", help="part.onnx becomes part.1.onnx, part.2.onnx, ...")
@common
def command(file: str, at: str | None, parts: int | None, output: str, as_json: bool, quiet: bool) -> None:
    """Split FILE into parts that, one after the other, give its answer. Each takes by name what earlier ones give.

    \b
    torchport split model.onnx --at relu_4 -o part.onnx
    torchport split model.onnx --parts 3 -o part.onnx
    """
    if (at is None) == (parts is None):
        raise click.UsageError("give --at TENSORS or --parts N")
    with progress(quiet or as_json) as say:
        say("loading")
        from torchport.editing.split import split
        from torchport.files import onnx_files
        from torchport.files.filesystem import check_target

        target = Path(output)
        given = split(file, names(at) if at is not None else int(parts or 0))
        paths = [str(target.with_suffix(f".{n}{target.suffix or '.onnx'}")) for n in range(1, len(given) + 1)]
        for path in paths:
            check_target(path)
        say("saving")
        for part, path in zip(given, paths, strict=True):
            onnx_files.save(part, path)
    if as_json:
        print_json({"paths": paths})
        return
    for part, path in zip(given, paths, strict=True):
        show_part(part, path, as_json)
