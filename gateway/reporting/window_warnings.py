"""Says that a window is too small for a client, or that a request does not fit it: a header, and one log
line for each client or conversation.
"""

import logging
from dataclasses import replace
from typing import Final

from gateway.conversations.turn import Turn, name_ids
from gateway.core.compaction.plan import Plan
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru, weigh_texts

log = logging.getLogger("gateway.limits")

# Some two thousand conversations.
_WARNINGS_BYTES: Final = 1 << 20
# A client that is forgotten is logged again.
_LOGGED_BYTES: Final = 1 << 18
# Side calls over the history of a conversation that is warned of itself.
_SIDE_CALLS: Final = ("summary", "title")


class WindowWarnings:
    def __init__(self) -> None:
        # The text by conversation; empty after a plan that found the window large enough.
        self._texts: Lru[str, str] = Lru(_WARNINGS_BYTES)
        # Tenant and scope: a client's model, system prompt and tools. It may open many conversations. Also
        # tenant and conversation, of those with a request that does not fit.
        self._logged: Lru[tuple[str, str], bool] = Lru(_LOGGED_BYTES)

    def note(self, turn: Turn, plan: Plan) -> Plan:
        """A measured plan, with the warning that it calls for. The first one of a client is logged."""
        if turn.purpose in _SIDE_CALLS:
            return plan
        text = str(plan.small_window) if plan.small_window is not None else ""
        if text or turn.conversation_id in self._texts:
            weight_bytes = ENTRY_WEIGHT_BYTES + weigh_texts(turn.conversation_id, text)
            self._texts.put(turn.conversation_id, text, weight_bytes)
        if text:
            self._log_once(turn, turn.scope, text)
        if plan.warning is not None:
            self._log_once(turn, turn.conversation_id, f"a request does not fit the window: {plan.warning}")
        return _with_warning(plan, text)

    def recall(self, turn: Turn, plan: Plan) -> Plan:
        """A plan that was made without measuring, with the warning of the last measured one."""
        return _with_warning(plan, self._texts.get(turn.conversation_id) or "")

    def _log_once(self, turn: Turn, name: str, text: str) -> None:
        """name: of what gets one line: a client, or a conversation."""
        client = turn.owner, name
        if self._logged.get(client) is None:
            log.warning("conversation=%s: %s", turn.conversation_id, text, extra=name_ids(turn))
            self._logged.put(client, True, ENTRY_WEIGHT_BYTES + weigh_texts(*client))


def _with_warning(plan: Plan, text: str) -> Plan:
    """What does not fit at all is more urgent."""
    return replace(plan, warning=text) if text and plan.warning is None else plan
