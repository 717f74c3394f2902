"""Headers of a response that say what was done with its request."""

from gateway.activity.book import ActivityBook
from gateway.activity.economics import render_economics
from gateway.conversations.turn import Turn
from gateway.core.compaction.plan import Plan
from gateway.headers import (
    X_GATEWAY_CONVERSATION,
    X_GATEWAY_ECONOMICS,
    X_GATEWAY_MAX_TOKENS,
    X_GATEWAY_PLAN,
    X_GATEWAY_TOKENS,
    X_GATEWAY_WARNING,
)
from gateway.settings import Settings


class PlanHeaders:
    """activity: what conversations cost, for clients that ask."""

    def __init__(self, settings: Settings, activity: ActivityBook) -> None:
        self._is_shown = settings.response_headers
        self._activity = activity

    def make(self, turn: Turn, plan: Plan) -> dict[str, str]:
        """Empty where the settings switch them off."""
        if not self._is_shown:
            return {}
        headers = {
            X_GATEWAY_CONVERSATION: turn.conversation_id,
            X_GATEWAY_PLAN: plan.name,
            X_GATEWAY_TOKENS: f"received={plan.received}, sent={plan.sent}",
        }
        if plan.output is not None:
            headers[X_GATEWAY_MAX_TOKENS] = str(plan.output)
        if turn.wants_economics:
            headers[X_GATEWAY_ECONOMICS] = render_economics(self._activity.find_of(turn))
        if plan.warning is not None:
            headers[X_GATEWAY_WARNING] = plan.warning
        return headers
