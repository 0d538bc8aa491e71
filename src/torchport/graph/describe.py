"""The old home of `tensor_infos`, which is in `describing` now.

Importing a module sets its name on the package: without what follows, `tp.graph.describe` would be this module and not
the function, as soon as somebody imported it. It goes when nobody does any more.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from torchport.graph.describing import describe, tensor_infos

__all__ = ["tensor_infos"]


class _Callable(types.ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return describe(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
