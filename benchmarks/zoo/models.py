"""Every model of the zoo by name. Nothing is built here: that takes the model's library."""

from __future__ import annotations

from spec import Spec, declare_torchvision_operators


def names() -> list[str]:
    from timm_models import SMALLEST
    from transformers_models import SPECS

    return [f"timm/{m}" for m in SMALLEST] + [f"transformers/{n}" for n in SPECS]


def find(name: str) -> Spec:
    declare_torchvision_operators()
    library, _, own = name.partition("/")
    if library == "timm":
        from timm_models import spec

        return spec(own)
    from transformers_models import SPECS

    return SPECS[own]
