"""The options a model is opened with: those of all engines, and the settings of one. They are plain data.

A setting is checked against what its engine declares, before the engine sees it. On the command line settings are
texts, ``--option streams=2``; in Python they may be numbers and lists too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from torchport.engines.protocol import Engine, OpenOptions, Setting
from torchport.engines.registry import find_engine
from torchport.errors import OptionError, did_you_mean

_MOST_THREADS = 64  # on a small machine too: more threads than cores are slow, not wrong
_TRUTHS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def open_options(
    engine: str,
    *,
    libraries: Sequence[str | os.PathLike[str]] = (),
    threads: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> OpenOptions:
    """Return the options for an engine, once each has a value that can be meant.

    Raises:
        OptionError: a thread count no machine has, a setting the engine does not know, or a value it does not take.
    """
    check_threads(threads)
    found = find_engine(engine)
    if threads is not None and not found.takes_threads:
        raise OptionError(f"the engine '{engine}' has no threads to set", next_step="leave --threads (threads=) out")
    values = {name: _value(engine, found, name, given) for name, given in (settings or {}).items()}
    found.check_settings(values)
    return OpenOptions(tuple(libraries), threads, values)


def check_threads(threads: int | None) -> None:
    """Check that a number of threads can be meant.

    Raises:
        OptionError: it is below 1, or far above the number of cores.
    """
    if threads is None:
        return
    cores = os.cpu_count() or 1
    most = max(_MOST_THREADS, 4 * cores)
    if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= most:
        raise OptionError(
            f"{threads!r} threads cannot run a model: this machine has {cores} cores",
            where=f"--threads {threads}, in Python threads={threads!r}",
            next_step=f"give 1 to {most}, or leave it out: the engine takes all cores",
        )


def _value(engine: str, found: Engine, name: str, given: Any) -> Any:
    setting = found.setting(name)
    if setting is None:
        known = list(found.settings)
        otherwise = f"it has: {', '.join(known)}" if known else "it has none"
        raise OptionError(
            f"the engine '{engine}' has no option '{name}'",
            where=f"--option {name}={given}, in Python options={{'{name}': ...}}",
            next_step=did_you_mean(name, known, otherwise),
        )
    try:
        return _read(setting, given)
    except ValueError:
        raise OptionError(
            f"option '{name}' of the engine '{engine}' is {setting.taken}, not {given!r}",
            where=f"--option {name}={given}, in Python options={{'{name}': {given!r}}}",
            next_step=_advice(setting, given),
        ) from None


def _advice(setting: Setting, given: Any) -> str:
    if not setting.words:
        return f"give {setting.taken}"
    return did_you_mean(str(given).lower(), setting.words, f"give {setting.taken}", most=1)


def _read(setting: Setting, given: Any) -> Any:
    """Return a setting's value.

    Raises:
        ValueError: it is of another kind, or none of the setting's words, or below its least number.
    """
    if setting.words and str(given).lower() in setting.words:
        return str(given).lower()
    if setting.kind is bool:
        return given if isinstance(given, bool) else _truth(given)
    if setting.kind is int:
        return _number(setting, given)
    if setting.kind is list:
        return tuple(given.split(",")) if isinstance(given, str) else tuple(map(str, given))
    if setting.kind is str and isinstance(given, (str, os.PathLike, int, float)) and str(given):
        return os.fspath(given) if isinstance(given, os.PathLike) else str(given)
    raise ValueError


def _truth(given: Any) -> bool:
    if str(given).lower() not in _TRUTHS:
        raise ValueError
    return _TRUTHS[str(given).lower()]


def _number(setting: Setting, given: Any) -> int:
    if isinstance(given, (bool, float)):
        raise ValueError
    number = int(given)
    if not setting.least <= number <= setting.most:
        raise ValueError
    return number
