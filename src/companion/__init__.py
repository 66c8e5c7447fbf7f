"""What the chapters need around the mathematics: claim checks, figures, routes, stored data."""

from companion.claims import (
    ClaimFailed,
    at_least,
    at_most,
    check_claims,
    equals,
    holds,
    within,
)
from companion.explore import explorer
from companion.store import read_data
from companion.style import show_figure, use_style

__all__ = [
    "ClaimFailed",
    "at_least",
    "at_most",
    "check_claims",
    "equals",
    "explorer",
    "holds",
    "read_data",
    "show_figure",
    "use_style",
    "within",
]
