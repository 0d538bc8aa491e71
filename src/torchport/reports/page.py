"""One self-contained HTML page: the viewer's script and style with the data of a model in it.

The data is compressed and in base64, so that no text of the model stands in the HTML where it could end an element.
A content security policy lets nothing run but the script itself, and nothing load at all.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchport.errors import ViewerMissingError

_BUNDLE = Path(__file__).parent / "viewer" / "dist"

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<noscript>This page draws a model with JavaScript, which is switched off here.</noscript>
<script type="text/plain" id="model-data">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def page(data: Mapping[str, Any], *, title: str) -> str:
    """Return the HTML. Data with `served` is for a page that may ask its own server.

    Raises:
        ViewerMissingError: torchport runs from its sources, and the viewer has not been built.
    """
    script, style = _bundled("viewer.js"), _bundled("viewer.css")
    policy = _policy(script, style, connect=bool(data.get("served")))
    return _PAGE.format(policy=policy, title=html.escape(title), style=style, data=_packed(data), script=script)


def check_viewer() -> None:
    """Check that the page's script is there.

    Raises:
        ViewerMissingError: torchport runs from its sources, and the viewer has not been built.
    """
    _bundled("viewer.js")


def _bundled(name: str) -> str:
    path = _BUNDLE / name
    if not path.is_file():
        raise ViewerMissingError(
            "the page's script is missing: the viewer has not been built from its sources",
            where=str(path),
            next_step="run `make viewer` in the folder of the sources",
        )
    return path.read_text(encoding="utf-8").strip()


def _policy(script: str, style: str, *, connect: bool) -> str:
    def allowed(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    own = "'self'" if connect else "'none'"
    return (
        f"default-src 'none'; script-src {allowed(script)}; style-src {allowed(style)}; worker-src blob:; "
        f"connect-src {own}; base-uri 'none'; form-action 'none'"
    )


def _packed(data: Mapping[str, Any]) -> str:
    """Return the data as base64 of gzip of JSON; the same data gives the same bytes."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), compresslevel=6, mtime=0)).decode()
