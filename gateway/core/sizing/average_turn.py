"""How many tokens a turn of a conversation adds: one reply of the model and what the client adds to it."""

from collections.abc import Sequence
from typing import Final

from gateway.core.history.conversation import Conversation

# So many that one large tool output hardly changes the average.
_NEWEST_TURNS: Final = 24
# Fewer turns say little about an average, so those that are missing count as empty.
_FEWEST_TURNS: Final = 6


def average_turn(conversation: Conversation, tokens: Sequence[float]) -> float:
    """The mean of the newest 24 turns after the opening, 0 without any. tokens: of each message."""
    messages = conversation.messages
    total, turns = 0.0, 0
    for position in range(len(messages) - 1, conversation.opening_end - 1, -1):
        total += tokens[position]
        if messages[position].role == "assistant" != (messages[position - 1].role if position else ""):
            turns += 1
            if turns == _NEWEST_TURNS:
                break
    return total / max(turns, _FEWEST_TURNS)
