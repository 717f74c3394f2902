"""The sentence in front of a summary: what the text is, and where the originals can be found.

Models take an unmarked summary for what was really said, and repeat its mistakes as facts; one that is marked
is checked against files before it is relied upon. The id is the only name of the conversation that a model
can pass to a tool that searches (docs/recall.md). One line, the same for the life of a pivot: it is stored
with it, so the bytes of what was sent before never change.
"""

from typing import Final, Literal

# How the text came about: written by a model, made of quotes, or a note that something is missing.
TextKind = Literal["summary", "digest", "note"]

_HEADS: Final[dict[TextKind, str]] = {
    "summary": (
        "This is a summary of earlier messages of this conversation. "
        "It was written by a model and is not verified."
    ),
    # The digest's own first line says how it was made.
    "digest": "This is a digest of earlier messages of this conversation.",
    # The policy's note says itself what is missing.
    "note": "",
}
_KEPT: Final = "The originals are kept and can be searched under the conversation id {id}."


def make_framing(kind: TextKind, conversation_id: str | None) -> str:
    """One line, or "" if there is nothing to say. conversation_id: None where originals are not kept."""
    kept = _KEPT.format(id=conversation_id) if conversation_id else ""
    return " ".join(filter(None, (_HEADS[kind], kept)))
