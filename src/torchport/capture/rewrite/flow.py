"""What rewritten code calls in place of `if`, `while`, `for` and their kin: one name for all of it."""

from __future__ import annotations

from torchport.capture.rewrite.branches import and_, compare, cond, for_loop, holds, never, not_, or_, while_loop
from torchport.capture.rewrite.conversions import (
    all_,
    any_,
    bool_,
    bound,
    collect,
    enumerate_,
    float_,
    int_,
    item_,
    len_,
    list_,
    max_,
    min_,
    range_,
    reversed_,
    sqrt_,
    sum_,
    tolist_,
    zip_,
)
from torchport.capture.rewrite.merging import UNSET
from torchport.capture.rewrite.picking import at, getattr_, str_, text_

__all__ = [
    "UNSET",
    "all_",
    "and_",
    "any_",
    "at",
    "bool_",
    "bound",
    "collect",
    "compare",
    "cond",
    "enumerate_",
    "float_",
    "for_loop",
    "getattr_",
    "holds",
    "int_",
    "item_",
    "len_",
    "list_",
    "max_",
    "min_",
    "never",
    "not_",
    "or_",
    "range_",
    "reversed_",
    "sqrt_",
    "str_",
    "sum_",
    "text_",
    "tolist_",
    "while_loop",
    "zip_",
]
