"""One conversation at several lengths."""

from gateway.core.history.conversation import Conversation
from tests.decisions.builders import JSON, converse

TURN: list[JSON] = [{"role": "assistant", "content": "Done."}, {"role": "user", "content": "More."}]
MESSAGES: list[JSON] = [{"role": "user", "content": "Fix it."}, *TURN * 5]


def talk(turns: int) -> Conversation:
    return converse(MESSAGES[: 1 + 2 * turns])
