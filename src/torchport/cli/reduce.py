"""torchport reduce FILE"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchport.cli.ops import load_libraries
from torchport.cli.options import library_option
from torchport.cli.output import common, print_json, progress
from torchport.engines.registry import DEFAULT, REFERENCE

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir

    from torchport.comparison.reduce import Check, Reduced
    from torchport.comparison.reduce_checks import Numbers
    from torchport.comparison.tensor_cache import Recorded
    from torchport.results import TensorInfo


@click.command("reduce", short_help="Find the smallest part of a model that still fails a check.")
@click.argument("file", metavar="FILE")
@click.option("--output", "-o", required=True, metavar="FILE", help="Where to save the part; its inputs go beside it.")
@click.option("--check", metavar="CMD", help="'python test.py {model} {inputs}': a model on which it exits 0 passes.")
@click.option("--crash", is_flag=True, help="A model fails that the engine refuses, dies of, or does not end with.")
@click.option(
    "--against",
    metavar="ENGINE|FILE",
    help="A model fails whose numbers differ from that engine's, or from the tensors of the same names in that file.",
)
@click.option("--engine", default=DEFAULT, show_default=True, help="What runs the model.")
@click.option(
    "--input",
    "-i",
    "inputs",
    multiple=True,
    metavar="SPEC",
    help="x=x.npy, data.npz, x=float32[1,3,224,224]; repeat for each.  [default: made up from FILE's shapes]",
)
@click.option("--expect", default="", metavar="TEXT", help="It fails only if this text is in what the check says.")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), help="Seconds after which a check has failed.")
@click.option("--rtol", type=click.FloatRange(min=0), help="Relative error allowed.  [default: by dtype]")
@click.option("--atol", type=click.FloatRange(min=0), help="Absolute error allowed, times the largest number.")
@click.option("--all", "all_parts", is_flag=True, help="Look for further parts that fail without the first.")
@library_option
@click.option("--seed", default=0, show_default=True, help="Seed for made-up inputs.")
@common
def command(file: str, output: str, as_json: bool, quiet: bool, all_parts: bool, **options: Any) -> None:
    """Find the smallest part of FILE that still fails a check, and save it with its inputs.

    One faulty node in 1000 takes about eleven checks. Between checks, a part is fed with what the whole model gives it.

    \b
    torchport reduce model.onnx --against reference -i x=x.npy -o small.onnx
    torchport reduce int8.onnx --against fp32.onnx --rtol 0.1 --atol 0.05 \\
        -i x.npz -o small.onnx
    torchport reduce model.onnx --check 'python test.py {model} {inputs}' \\
        -i x.npz -o small.onnx
    torchport reduce model.onnx --crash -o small.onnx
    """
    _check_kind(options)
    with progress(quiet or as_json) as say:
        say("loading")
        from torchport.comparison.reduce import reduce
        from torchport.files import onnx_files
        from torchport.files.filesystem import check_target

        check_target(output)
        options["own"] = load_libraries(options["libraries"])
        model = onnx_files.load(file)
        fails, recorded = _asked(model, options)
        found = reduce(model, fails, inputs=recorded, all_parts=all_parts, progress=say)
        say("saving")
        parts = [found, *found.more]
        paths = [_save(part, fails, _numbered(output, i)) for i, part in enumerate(parts)]
    _show(found, paths, as_json)


def _check_kind(options: Mapping[str, Any]) -> None:
    kinds = [options["check"] is not None, options["crash"], options["against"] is not None and not options["crash"]]
    if sum(kinds) != 1:
        raise click.UsageError("give one of --check CMD, --crash and --against ENGINE|FILE")
    if options["expect"] and kinds[2]:
        raise click.UsageError("--expect is for --check and --crash: numbers say nothing")


def _asked(model: ir.Model, options: Mapping[str, Any]) -> tuple[Check, Recorded | None]:
    """The check, and what knows the tensors it is fed with."""
    from torchport.comparison.reduce_checks import Command, Crash

    limits = {"timeout": options["timeout"], "expect": options["expect"]}
    if options["check"] is not None:
        command = Command(options["check"], **limits)
        wanted = command.needs_inputs or bool(options["inputs"])
        return command, _recorded(model, options["engine"], options) if wanted else None
    if not options["crash"]:
        return _numbers(model, options)
    crash = Crash(options["engine"], libraries=options["libraries"], **limits)
    if crash(model):  # it cannot even be opened: no inputs are needed to see that
        return crash, None
    return crash, _recorded(model, options["against"] or REFERENCE, options)


def _numbers(model: ir.Model, options: Mapping[str, Any]) -> tuple[Numbers, Recorded]:
    from torchport.comparison.reduce_checks import Numbers
    from torchport.engines.registry import engine_names
    from torchport.errors import OptionError
    from torchport.files import onnx_files

    against = options["against"]
    if against in engine_names():
        recorded = _recorded(model, against, options)
        return Numbers(options["engine"], against=against, limit=_limit(options), libraries=options["own"]), recorded
    if not Path(against).is_file():
        raise OptionError(
            f"--against '{against}' is neither an engine nor a file", next_step=f"engines: {', '.join(engine_names())}"
        )
    recorded = _recorded(onnx_files.load(against), options["engine"], options)
    return Numbers(options["engine"], against=recorded, limit=_limit(options), libraries=options["own"]), recorded


def _limit(options: Mapping[str, Any]) -> Any:
    from torchport.numerics.tolerance import Tolerance

    if options["rtol"] is None and options["atol"] is None:
        return None
    return Tolerance(options["rtol"] or 0.0, options["atol"] or 0.0)


def _recorded(model: ir.Model, engine: str, options: Mapping[str, Any]) -> Recorded:
    from torchport.cli import run
    from torchport.comparison.tensor_cache import Recorded
    from torchport.inputs.create import made_up_specs
    from torchport.irtools.types import tensor_infos

    infos = tensor_infos([v for v in model.graph.inputs if not v.is_initializer()])
    texts = options["inputs"] or tuple(map(str, made_up_specs(_all_fixed(infos))))
    feeds = run.read(infos, texts, options["seed"])
    return Recorded(model, feeds, engine=engine, libraries=options["own"])


def _all_fixed(infos: Sequence[TensorInfo]) -> Sequence[TensorInfo]:
    """Check that shapes are fixed: at a size that was made up, the model may not fail as it does for the user."""
    from torchport.errors import InputError

    for info in infos:
        if info.shape is None or not all(isinstance(d, int) for d in info.shape):
            raise InputError(
                f"input '{info.name}' has no fixed shape to make one up of",
                where=str(info),
                next_step="give it as --input",
            )
    return infos


def _numbered(output: str, place: int) -> Path:
    path = Path(output)
    return path if place == 0 else path.with_suffix(f".{place + 1}{path.suffix or '.onnx'}")


def _save(part: Reduced, fails: Check, path: Path) -> dict[str, str]:
    """The part, its inputs, and, if numbers were compared, what it should answer."""
    from torchport.comparison.reduce_checks import Numbers
    from torchport.files import onnx_files

    onnx_files.save(part.model, path, check=False)  # a part may fail because it is no valid model
    saved = {"model": str(path)}
    if part.inputs:
        saved["inputs"] = _save_arrays(path.with_suffix(".npz"), part.inputs)
    if isinstance(fails, Numbers):
        expected = fails.expected(part.model, part.inputs)
        saved["expected"] = _save_arrays(path.with_suffix(".expected.npz"), expected)
    return saved


def _save_arrays(path: Path, values: Mapping[str, Any]) -> str:
    from torchport.files.filesystem import write_atomically
    from torchport.inputs.samples import save_arrays

    write_atomically(path, lambda part: save_arrays(part, values))
    return str(path)


def _show(found: Reduced, paths: list[dict[str, str]], as_json: bool) -> None:
    parts = [found, *found.more]
    if as_json:
        listed = [{**path, **_facts(part)} for part, path in zip(parts, paths, strict=True)]
        print_json({"checks": found.checks, "of": found.whole, "finished": found.finished, "parts": listed})
        return
    for part, path in zip(parts, paths, strict=True):
        click.echo(f"{part.nodes} of {found.whole} nodes left → {path['model']}")
        for name, origin in zip(part.names, part.origins, strict=True):
            click.echo(f"  {name}" + (f": {origin}" if str(origin) != "unknown" else ""))
        for what in ("inputs", "expected"):
            if what in path:
                click.echo(f"  {what} → {path[what]}")
    click.echo(f"{found.checks} checks")


def _facts(part: Reduced) -> dict[str, Any]:
    return {"nodes": part.nodes, "names": part.names, "origins": part.origins}
