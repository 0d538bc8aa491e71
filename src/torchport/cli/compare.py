"""torchport compare A B"""

from __future__ import annotations

from typing import Any

import click

from torchport.cli.ops import load_libraries
from torchport.cli.options import check_page, gather, library_option, load, page_option, write_page
from torchport.cli.output import common, print_json, progress
from torchport.engines.registry import DEFAULT


@click.command("compare", short_help="Find where two models, or engines, give other numbers.")
@click.argument("a", metavar="A")
@click.argument("b", metavar="[B]", required=False)
@click.option(
    "--input", "-i", "inputs", multiple=True, metavar="SPEC", help="x=x.npy, x=float32[1,3,224,224], n=3; repeat."
)
@click.option("--data", metavar="FOLDER", help="Samples instead: a folder of .npz files, or one.")
@click.option(
    "--data-b", metavar="FOLDER", help="The same calls as recorded on B's side: says where the inputs differ."
)
@click.option("--layers", is_flag=True, help="Compare every tensor inside, and find where the error is introduced.")
@click.option("--isolate", is_flag=True, help="Also give each node the reference's inputs.")
@click.option("--precision", is_flag=True, help="Which layers of a float16 or int8 B need float32, fewest first.")
@click.option("--engines", metavar="X,Y", help="Without B: hold A in the first engine against the others.")
@click.option("--map", "outputs", multiple=True, metavar="A=B", help="Which output is which; repeat for each.")
@click.option("--rtol", type=float, help="Relative tolerance.  [default: by dtype]")
@click.option("--atol", type=float, help="Tolerance beside a tensor's largest number.  [default: by dtype]")
@click.option("--save", metavar="FOLDER", help="For the worst sample, and the first node that differs.")
@click.option("--memory", metavar="SIZE", default="1GiB", show_default=True, help="For tensors held at once.")
@page_option
@click.option("--all", "every", is_flag=True, help="Show every layer.")
@click.option("--seed", default=0, show_default=True, help="Seed for made-up inputs and weights.")
@click.option("--trust", is_flag=True, help="Load a .pt or .pt2 that runs code when loaded.")
@library_option
@common
def command(
    a: str,
    b: str | None,
    inputs: tuple[str, ...],
    data: str | None,
    engines: str | None,
    outputs: tuple[str, ...],
    memory: str,
    every: bool,
    page: str | None,
    seed: int,
    trust: bool,
    libraries: tuple[str, ...],
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Hold model B against A: PyTorch models, ONNX files or .npz of saved tensors.

    Exits 1 if an output differs, or an engine cannot run the model.

    \b
    torchport compare model.py:Net model.onnx --input x=float32[1,3,224,224]
    torchport compare fp32.onnx int8.onnx --data samples/ --layers
    torchport compare model.onnx --engines onnxruntime,reference --layers
    """
    chosen = tuple(e for e in (engines or DEFAULT).split(",") if e)
    if inputs and data is not None:
        raise click.UsageError("give --input or --data, not both")
    if page is not None:
        _check_shown(a, b)
        check_page(page)
    pairs = _pairs(outputs)
    budget = _bytes(memory)
    with progress(quiet or as_json) as say:
        say("loading")
        from torchport.comparison.compare import compare

        own = load_libraries(libraries)
        given = [Given(a, seed, trust), *([Given(b, seed, trust)] if b else [])]
        found = compare(
            given[0].model,
            given[1].model if b else None,
            inputs=given_inputs(given, inputs, seed) if data is None else None,
            data=data,
            engines=chosen,
            outputs=pairs,
            budget=budget,
            libraries=own,
            progress=say,
            **options,
        )
    results = found if isinstance(found, dict) else {"": found}
    write_page(page, b or a, *results.values())
    if as_json:
        print_json({"comparisons": found} if isinstance(found, dict) else found)
    else:
        click.echo("\n\n".join(one.text(every=every) for one in results.values()))
    if not all(one.agrees and not one.other_inputs for one in results.values()):
        raise click.exceptions.Exit(1)


def _check_shown(a: str, b: str | None) -> None:
    if not (b or a).endswith(".onnx"):
        raise click.BadParameter("the page shows the graph of B, which must be an ONNX file", param_hint="--report")


class Given:
    """One side as it stands on the command line; a PyTorch model is loaded, the rest is opened by its path."""

    def __init__(self, text: str, seed: int, trust: bool) -> None:
        self.source = None if text.endswith((".onnx", ".npz")) else load(text, seed=seed, trust=trust)
        self.model = text if self.source is None else self.source.model


def given_inputs(given: list[Given], texts: tuple[str, ...], seed: int) -> Any:
    """What --input says, or example_inputs() beside a PyTorch model; by name where there are names."""
    from torchport.cli import run
    from torchport.files.onnx_files import load as load_onnx
    from torchport.irtools.types import tensor_infos

    sources = [g.source for g in given if g.source is not None]
    files = [str(g.model) for g in given if str(g.model).endswith(".onnx")]
    if sources or not files:
        args, kwargs = gather(sources[0], texts, seed, required=False) if sources else _arrays(texts, seed)
    else:
        graph = load_onnx(files[0]).graph
        infos = tensor_infos(v for v in graph.inputs if not v.is_initializer())
        args, kwargs = (), run.read(infos, texts, seed) if texts else {}
    if args and kwargs:
        raise click.UsageError("give all inputs by name, or none")
    return kwargs or args or None


def _arrays(texts: tuple[str, ...], seed: int) -> Any:
    from torchport.capture.inputs import build_inputs
    from torchport.inputs.spec import parse_input

    return build_inputs([parse_input(text) for text in texts], seed=seed)


def _pairs(texts: tuple[str, ...]) -> dict[str, str]:
    pairs = dict(_pair(text) for text in texts)
    twice = [one for one in pairs if sum(text.startswith(f"{one}=") for text in texts) > 1]
    if twice:
        raise click.BadParameter(f"output '{twice[0]}' is given twice", param_hint="--map")
    return pairs


def _pair(text: str) -> tuple[str, str]:
    one, sign, other = text.partition("=")
    if not sign or not one or not other:
        raise click.BadParameter(f"'{text}' is not A=B", param_hint="--map")
    return one, other


def _bytes(text: str) -> int:
    import re

    units = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]?)(?:i?b)?", text.strip().lower())
    if match is None:
        raise click.BadParameter(f"'{text}' is no size such as 512MiB or 2GiB", param_hint="--memory")
    return int(float(match[1]) * units[match[2]])
