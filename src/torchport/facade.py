"""Public names of a module that are imported when they are first used, so that importing the module costs nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    facade: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return the `__getattr__`, `__dir__` and `__all__` of a facade.

    Args:
        facade: the module's name.
        homes: module to the names that are taken from it, ``"load save"``; ``"convert=set_opset"`` gives a name of its
            own, and ``"=graph"`` the module itself.
    """
    found: dict[str, tuple[str, str]] = {}
    for home, names in homes.items():
        for name in names.split():
            there, _, own = name.partition("=")
            found[own or there] = (home, there)

    def get(name: str) -> Any:
        if name not in found:
            raise AttributeError(f"module {facade!r} has no attribute {name!r}")
        home, there = found[name]
        module = import_module(home)
        value = getattr(module, there) if there else module
        setattr(sys.modules[facade], name, value)
        return value

    public = sorted(found)
    return get, lambda: public, public
