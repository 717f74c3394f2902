"""Where other processes may be cutting the same chain at the same time.

A compaction stands for the messages up to its cut. Two of them concern one another if the cut of one is a
place of the other's chain. So conversations that only begin alike do not: a cut lies behind what they share.
"""

from typing import Final

from gateway.core.compaction.cut import Cut
from gateway.core.history.conversation import Conversation, find_open_group

# Compactions of one chain that are made at the same time are for requests a few turns apart, and so are their
# cuts. A conversation of 100,000 messages must not ask the store about each of them.
_REACH: Final = 500


def find_cut_key(conversation: Conversation, cut: Cut) -> str:
    """The chain up to the cut, in hex."""
    return conversation.chain[cut.covers].hex()


def list_rival_keys(conversation: Conversation, cut: Cut) -> list[str]:
    """Every other place of the chain near the cut and behind what it builds on, the last one first."""
    return _list_keys(conversation, cut, len(conversation.messages), skips=cut.covers)


def list_newer_keys(conversation: Conversation, cut: Cut) -> list[str]:
    """Where a pivot may have been made meanwhile that makes the cut needless, the last one first.

    It covers more than the cut builds on, and the conversation can use it: it ends before the open group, or
    where the cut does.
    """
    return _list_keys(conversation, cut, max(cut.covers, find_open_group(conversation)))


def _list_keys(conversation: Conversation, cut: Cut, end: int, *, skips: int | None = None) -> list[str]:
    known_from = conversation.trim.known_from if conversation.trim is not None else 0
    first = max(cut.start + 1, cut.covers - _REACH, known_from)
    last = min(end, cut.covers + _REACH)
    return [conversation.chain[at].hex() for at in range(last, first - 1, -1) if at != skips]
