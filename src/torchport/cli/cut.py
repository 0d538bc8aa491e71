"""torchport cut FILE"""

from __future__ import annotations

import click

from torchport.cli.output import common, print_json, progress


@click.command("cut", short_help="Cut a part out of a model, by tensors or by module.")
@click.argument("file", metavar="FILE")
@click.option("--from", "begin", metavar="A,B", help="Tensors or nodes to begin at.  [default: the model's inputs]")
@click.option("--to", "end", metavar="C,D", help="Tensors or nodes to end at.  [default: the model's outputs]")
@click.option("--module", metavar="PATH", help="A module of the PyTorch model instead, such as encoder.layer.3.")
@click.option("--complete", is_flag=True, help="Add inputs that are missing, the fewest that do.")
@click.option("--output", "-o", required=True, metavar="FILE", help="Where to save the part.")
@common
def command(
    file: str,
    begin: str | None,
    end: str | None,
    module: str | None,
    complete: bool,
    output: str,
    as_json: bool,
    quiet: bool,
) -> None:
    """Cut the part of FILE between some of its tensors, and save it.

    \b
    torchport cut model.onnx --from relu_1 --to logits -o part.onnx
    torchport cut model.onnx --module encoder.layer.3 -o layer.onnx
    """
    with progress(quiet or as_json) as say:
        say("loading")
        from torchport.editing.extract import cut
        from torchport.files import onnx_files
        from torchport.files.filesystem import check_target

        check_target(output)
        part = cut(file, names(begin), names(end), module=module, complete=complete)
        say("saving")
        onnx_files.save(part, output)
    show_part(part, output, as_json)


def names(text: str | None) -> list[str]:
    return [n for n in (text or "").split(",") if n]


def show_part(part: object, path: str, as_json: bool) -> None:
    from torchport.irtools.types import tensor_infos

    graph = part.graph  # type: ignore[attr-defined]
    own = [v for v in graph.inputs if str(v.name) not in graph.initializers]
    inputs, outputs = tensor_infos(own), tensor_infos(graph.outputs)
    if as_json:
        print_json({"path": path, "nodes": len(graph), "inputs": inputs, "outputs": outputs})
        return
    click.echo(f"{len(graph)} nodes → {path}")
    for title, infos in (("in", inputs), ("out", outputs)):
        for info in infos:
            click.echo(f"  {title:4} {info}")
