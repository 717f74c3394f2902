"""Asks the hooks, then the summariser."""

from gateway.conversations.turn import Turn
from gateway.core.compaction.cut import Cut
from gateway.core.compaction.plan import Situation
from gateway.core.compaction.summary import Rejected
from gateway.hooks import Hooks, PreCompact
from gateway.order import Order
from gateway.summariser import Made, Summariser

VETOED = Rejected("vetoed", is_summarisers=False)


class Hooked:
    def __init__(self, summariser: Summariser, hooks: Hooks) -> None:
        self._summariser = summariser
        self._hooks = hooks

    async def summarise(self, turn: Turn, cut: Cut, situation: Situation, order: Order) -> Made:
        """A veto is a compaction that failed, at no call."""
        before = PreCompact(
            trigger=order.trigger,
            custom_instructions=order.instructions or None,
            conversation=turn.conversation,
            tenant=turn.tenant.shown,
            pre_tokens=order.pre_tokens,
        )
        said = await self._hooks.ask(before)
        if said.veto:
            return Made(VETOED, 0)
        added = "\n\n".join(filter(None, (said.instructions, "\n".join(said.context))))
        told = turn.instructed(added, said.prompt) if added or said.prompt else turn
        return await self._summariser.summarise(told, cut, situation, order.calls)
