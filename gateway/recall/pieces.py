"""Found pieces as a text that a model reads: quoted as data, each with its position and origin."""

from collections.abc import Sequence
from typing import Final

from gateway.core.history.transcript import quote, render_name
from gateway.originals.search import FoundPiece

# Most tokens that one addition brings back.
MOST_TOKENS: Final = 1_600

_NOTHING = "Nothing was found. Try other words: names, paths or values as they were written."


def render_pieces(pieces: Sequence[FoundPiece]) -> str:
    """Never empty."""
    return "\n\n".join(_render(piece) for piece in pieces) if pieces else _NOTHING


def _render(piece: FoundPiece) -> str:
    origin = ", ".join(render_name(name) for name in (piece.role, piece.tool, piece.path) if name)
    return f"[message {piece.position}, {origin}]\n{quote(piece.text)}"
