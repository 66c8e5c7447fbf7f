"""What the chapters need around the mathematics: claim checks, figures, explorers."""

from companion.claims import ClaimFailed, check_claims, claim
from companion.explore import explorer
from companion.style import show_figure, use_style

__all__ = ["ClaimFailed", "check_claims", "claim", "explorer", "show_figure", "use_style"]
