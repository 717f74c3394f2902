"""A message that is meant for the gateway: is it one, and what is answered?

Knows the words of both, nothing of wire formats. Who may say it is the policy's part.
"""

from typing import Final, assert_never

from gateway.core.compaction.manual import Failed, Folded, ManualOutcome, NothingToFold, UnderWay
from gateway.core.history.message import Message

_COMPACT: Final = "/compact"
# A longer text is a message that happens to begin like a command.
LONGEST_INSTRUCTIONS_CHARS: Final = 8_000


def may_be_command(message: Message) -> bool:
    """Is it a user's, and words alone? Its text has to be read then."""
    return message.role == "user" and not message.results and not message.has_media


def parse_compact(text: str) -> str | None:
    """The instructions of `/compact [instructions]`, empty where there are none; None for any other text."""
    name, *rest = text.split(maxsplit=1) or ("",)
    instructions = rest[0].rstrip() if rest else ""
    is_command = name == _COMPACT and len(instructions) <= LONGEST_INSTRUCTIONS_CHARS
    return instructions if is_command else None


def describe(outcome: ManualOutcome) -> str:
    """What the person is told, and what the model will read when the client sends it back. Sizes are
    estimates.
    """
    match outcome:
        case Folded(messages, before, after):
            return (
                f"Compacted: {messages} earlier messages are now a summary. "
                f"About {before:,} tokens before, {after:,} after."
            )
        case NothingToFold():
            return "Nothing to compact: there is no earlier turn to fold. The conversation is unchanged."
        case UnderWay():
            return "A compaction of this conversation is under way. It takes effect when it is done."
        case Failed(reason):
            return f"The compaction failed ({reason}). The conversation is unchanged."
        case _:
            assert_never(outcome)
