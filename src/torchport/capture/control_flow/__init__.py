"""Why a rewrite ends."""

from __future__ import annotations


class RewriteError(Exception):
    """What cannot be kept in a graph, in plain words; the user's line is found on the stack."""
