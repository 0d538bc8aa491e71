"""`.pt2` files: a saved ExportedProgram, vetted member by member before torch may open it.

`torch.export.load` of torch 2.13 can run code that came with the file in these places, each checked first:

- `data/weights/*_weights_config.json`, `data/constants/*_constants_config.json`: an entry with `use_pickle`,
  an `opaque_obj_*` (`pickle.loads`), or a `custom_obj_*` (a C++ class restores itself);
- `data/weights/model.pt`, `data/constants/model.pt` (the layout of older versions) and
  `data/sample_inputs/model.pt`: tried with `weights_only=True` and, if that fails, unpickled in full;
- `models/model.json`: see `program_text`;
- `data/aotinductor/`: a shared library, loaded into the process;
- a member under another spelling, which torch's reader finds all the same: see `members`;
- operators that reach out of the process: see `operator_safety`;
- a zip with `serialized_exported_program.json` (torch 2.7 and before): everything pickled.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from torchport.capture.archive_members import Members, check_zip
from torchport.capture.exported_program_text import Refusal, check_plain, check_program
from torchport.capture.operator_safety import program_operator_problem
from torchport.capture.pytorch_files import load_weights, only_weights, quiet
from torchport.errors import MissingPartError, SourceError, UntrustedError, first_line
from torchport.torch_compat import saved_files

_MODEL = "models/model.json"
_SAMPLES = "data/sample_inputs/model.pt"
_WEIGHTS = "data/weights/"
_CONSTANTS = "data/constants/"
_NATIVE = "data/aotinductor/"
# a member of no bytes makes torch allocate the tensor it is said to be
_EMPTY_TENSOR = 1 << 20
# and a stride of 0 makes a large tensor of a small member
_VIEW = 1 << 28


def load_program(path: Path, *, trust: bool = False) -> Any:
    """The ExportedProgram in `path`.

    Raises:
        UntrustedError: opening it would run code that came with it, and nobody vouched for it.
        SourceError: it is broken, or holds something else.
    """
    if trust:
        return _open(path, trust=True)
    vet(path)
    with only_weights():
        return _open(path, trust=False)


def refuse_old(path: Path) -> NoReturn:
    """A program saved by torch 2.7 or before: all of it pickled."""
    raise UntrustedError(
        f"{path.name} was saved by PyTorch 2.7 or before: opening it runs whatever code it asks for",
        where=str(path),
        next_step="save it again with a newer PyTorch; or, if you know who made the file, pass --trust",
    )


def vet(path: Path) -> None:
    """Make sure that opening the program would run nothing that came with it."""
    try:
        archive = Members(path)
        _check_members(archive)
        _check_program(archive)
        for folder, config in (
            (_WEIGHTS, "model_weights_config.json"),
            (_CONSTANTS, "model_constants_config.json"),
        ):
            _check_payloads(archive, folder, config)
        _check_samples(archive)
    except Refusal as reason:
        raise UntrustedError(
            f"{path.name} would run code that came with it: {reason}",
            where=str(path),
            next_step="give the model as file.py:object; or, if you know who made the file, pass --trust",
        ) from reason


def _record(archive: Members, name: str, kind: str) -> Any:
    """Return the JSON member `name` as the class `kind` of torch's schema."""
    try:
        fields = json.loads(archive.read(name))
        return saved_files.program_record(kind, fields)
    except (SourceError, MissingPartError):
        raise
    except Exception as error:
        raise archive.broken(f"{name} cannot be read ({first_line(error)})") from error


def _check_members(archive: Members) -> None:
    if archive.read("archive_format") != b"pt2":
        raise archive.broken("it does not say that it is one")
    if any(name.casefold().startswith(_NATIVE) for name in archive.names):
        raise Refusal("it holds a compiled library (AOTInductor)")
    if extra := [n for n in archive.names if n.startswith("models/") and n != _MODEL]:
        raise archive.broken(f"it holds another program beside the first: {extra[0]}")
    archive.hold_to("program")


def _check_program(archive: Members) -> None:
    for text in check_program(_record(archive, _MODEL, "ExportedProgram")):
        if not text.startswith("torch.ops."):
            continue
        operator = _look_up(text)
        if operator is None:
            raise SourceError(
                f"{archive.path.name} uses the operator {text}, which is not registered here",
                where=str(archive.path),
                next_step="import the Python package that registers it, or give the model as file.py:object",
            )
        if problem := program_operator_problem(operator):
            raise Refusal(f"it calls {text}, which {problem}")


def _look_up(text: str) -> Any:
    import torch

    found: Any = torch.ops
    for part in text.split(".")[2:]:
        found = getattr(found, part, None)
    return found


def _check_payloads(archive: Members, folder: str, config: str) -> None:
    """Weights or constants: raw bytes are fine, torch's pickles of tensors too, other pickles are not."""
    legacy = f"{folder}model.pt"
    if legacy in archive.names:
        _check_pickle(archive, legacy)
        return
    for name, meta in _record(archive, folder + config, "PayloadConfig").config.items():
        check_plain(str(name))
        _check_payload(archive, folder, meta)


def _check_payload(archive: Members, folder: str, meta: Any) -> None:
    member = folder + str(meta.path_name)
    archive.need(member)
    if folder == _CONSTANTS and not str(meta.path_name).startswith("tensor_"):
        raise Refusal(f"{member} is a pickled object, not a tensor")
    if meta.use_pickle:
        _check_pickle(archive, member)
    else:
        _check_sizes(archive, member, meta.tensor_meta)


def _check_sizes(archive: Members, member: str, meta: Any) -> None:
    try:
        sizes = [int(size.as_int) for size in meta.sizes]
    except (AttributeError, TypeError, ValueError) as error:
        raise archive.broken(f"{member} has no fixed size") from error
    count, stored = math.prod(sizes), archive.size(member)
    if min(sizes, default=0) < 0 or (not stored and count > _EMPTY_TENSOR) or (count > stored and count > _VIEW):
        raise archive.broken(f"{member} has {stored:,} bytes and is said to hold {count:,} numbers")


def _check_pickle(archive: Members, member: str) -> Any:
    """Open a pickle of torch's in the way that runs nothing; what does not open so is refused."""
    data = archive.read(member)
    if zipfile.is_zipfile(io.BytesIO(data)):
        check_zip(io.BytesIO(data), where=f"{archive.path}, {member}")
    try:
        return load_weights(io.BytesIO(data))
    except Exception as error:
        raise Refusal(f"{member} is a pickle of more than tensors") from error


def _check_samples(archive: Members) -> None:
    """The example inputs; the keys of dicts among them become part of the guards' source."""
    if not archive.read(_SAMPLES):
        return
    for key in _keys(_check_pickle(archive, _SAMPLES)):
        check_plain(key)


def _keys(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        yield from (str(key) for key in value)
        value = list(value.values())
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _keys(item)


def _open(path: Path, *, trust: bool) -> Any:
    import torch

    try:
        with quiet():
            if trust:
                return torch.export.load(str(path))
            return saved_files.load_program(str(path))
    except MissingPartError:
        raise
    except Exception as error:
        raise SourceError(
            f"{path.name} cannot be opened as an exported program: {first_line(error)}",
            where=str(path),
            next_step="save it again with torch.export.save and this version of PyTorch "
            f"({torch.__version__}), on the CPU",
        ) from error
