"""Says that a window is too small for a client: one log line for each conversation, and a header."""

import logging
from dataclasses import replace
from typing import Final

from gateway.conversations.turn import Turn
from gateway.core.compaction.plan import Plan
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru, weigh_texts

log = logging.getLogger("gateway.limits")

# Some two thousand conversations. One that is forgotten is logged again.
_WARNINGS_BYTES: Final = 1 << 20


class WindowWarnings:
    def __init__(self) -> None:
        # The text by conversation; empty after a plan that found the window large enough.
        self._texts: Lru[str, str] = Lru(_WARNINGS_BYTES)

    def note(self, turn: Turn, plan: Plan) -> Plan:
        """A measured plan, with the warning that it calls for. Logged once for each conversation."""
        text = str(plan.small_window) if plan.small_window is not None else ""
        # The client's own summary of a conversation is a branch, whose parent has been logged.
        if turn.purpose == "summary":
            return plan
        if text and turn.conversation_id not in self._texts:
            log.warning("conversation=%s: %s", turn.conversation_id, text)
        if text or turn.conversation_id in self._texts:
            weight_bytes = ENTRY_WEIGHT_BYTES + weigh_texts(turn.conversation_id, text)
            self._texts.put(turn.conversation_id, text, weight_bytes)
        return _with_warning(plan, text)

    def recall(self, turn: Turn, plan: Plan) -> Plan:
        """A plan that was made without measuring, with the warning of the last measured one."""
        return _with_warning(plan, self._texts.get(turn.conversation_id) or "")


def _with_warning(plan: Plan, text: str) -> Plan:
    """What does not fit at all is more urgent."""
    return replace(plan, warning=text) if text and plan.warning is None else plan
