"""The engines that are installed, found by their entry points. No other module looks for engines."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from torchport.errors import EngineError, EngineMissingError, OptionError, TorchportError, did_you_mean, first_line

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from torchport.engines.protocol import Engine

# Only names are needed to show a --help: what takes time to import is imported in functions.

DEFAULT = "onnxruntime"
REFERENCE = "reference"  # runs a model that another engine crashes on
GROUP = "torchport.engines"
_INSTALL = "install torchport again, with `pip install -e .` in a checkout: pip records the engines when it installs"


def engine_names() -> tuple[str, ...]:
    """Return the names of the engines here: torchport's own and those that other packages register."""
    return tuple(sorted(name for name, entry in _entries().items() if _lacking(entry) is None))


def missing_engines() -> dict[str, str]:
    """Return the names of torchport's engines whose package is not installed, each with the command to install it."""
    return {name: _command(extra) for name, entry in sorted(_entries().items()) if (extra := _lacking(entry))}


def _lacking(entry: EntryPoint) -> str | None:
    """Return the extra that an engine needs and that is not installed. It has the name of the module it brings."""
    from importlib.util import find_spec

    return next((extra for extra in entry.extras if find_spec(extra) is None), None)


def _command(extra: str) -> str:
    return f'pip install "torchport[{extra}]"'


def find_engine(name: str) -> Engine:
    """Return the engine of that name.

    Raises:
        EngineMissingError: there is none here, or it cannot be loaded.
    """
    check_engine(name)
    return _load(_entries()[name])


def check_engine(name: str) -> None:
    """Check that an engine of that name is installed; it is not loaded."""
    known = engine_names()
    if not known:
        raise EngineMissingError(f"there is no engine '{name}' here, nor any other", next_step=_INSTALL)
    if name in (missing := missing_engines()):
        raise EngineMissingError(f"the engine '{name}' is not installed", next_step=missing[name])
    if name not in known:
        raise EngineMissingError(f"there is no engine '{name}' here", next_step=f"use one of: {', '.join(known)}")


def check_engines(names: Sequence[str], *, alone: bool) -> None:
    """Check the engines of a comparison. Where two are left, one that is missing is reported beside the others.

    Args:
        names: the engines that the user named.
        alone: there is one model, which one engine after the other runs.
    """
    known = engine_names()
    missing = [name for name in names if name not in known]
    for name in missing:
        if hint := did_you_mean(name, known, most=1, cutoff=0.6):
            raise EngineMissingError(f"there is no engine '{name}'", next_step=hint)
    if not names:
        raise OptionError("no engine is named", next_step=f"use one of: {', '.join(known)}")
    if alone and len(names) < 2:
        raise OptionError("there is one model and one engine: nothing to compare with", next_step="name two engines")
    if not alone and len(names) > 1:
        raise OptionError(
            f"there are two models and {len(names)} engines", next_step="name one engine, or give one model"
        )
    if missing and len(names) - len(missing) < 2:
        check_engine(missing[0])


@functools.cache  # every session asks, and pip changes nothing under a running process
def _entries() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group=GROUP)}


@functools.cache
def _load(entry: EntryPoint) -> Engine:
    from torchport.engines.protocol import Engine

    try:
        found = entry.load()
    except Exception as error:
        raise _unusable(entry, f"does not load: {first_line(error)}") from error
    if not (isinstance(found, type) and issubclass(found, Engine)):
        raise _unusable(entry, "is no subclass of torchport.engines.protocol.Engine")
    return found()


def _unusable(entry: EntryPoint, reason: str) -> EngineMissingError:
    """Return the error with the command that helps: an environment made before still names the engines of then."""
    own = entry.value.startswith("torchport.")
    return EngineMissingError(
        f"the engine '{entry.name}' cannot be used: {entry.value} {reason}",
        next_step=_INSTALL if own else f"install a version of the package of '{entry.name}' for this torchport",
    )


@contextlib.contextmanager
def faults_of(engine: str) -> Iterator[None]:
    """Report what an engine raises, other than what it should, as the engine's error and not as torchport's.

    Example:
        >>> with faults_of("mine"):
        ...     session.run(feeds)
    """
    import numpy as np

    try:
        with np.errstate(all="ignore"):  # numbers that overflow are what is looked for
            yield
    except TorchportError:
        raise
    except Exception as error:
        text = str(error).strip().splitlines()
        reason = f"{type(error).__name__}{': ' + text[0] if text else ''}"
        raise EngineError(f"the engine '{engine}' failed: {reason}") from error
