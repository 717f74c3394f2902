"""The same bytes wherever they are made."""

import threading
from collections.abc import Sequence

import pytest

from gateway.bounds.lanes import Lanes
from gateway.conversations.turn import Turn
from gateway.core.compaction.plan import Plan
from gateway.core.history.pivot import Mark
from gateway.outgoing.fair_rewriter import FairRewriter
from gateway.outgoing.rewriter import Rewriter
from gateway.wire.edits import Edit, make_usage_edit
from tests.builders.chat import JSON, make_batch, make_plan, make_turn, read, render


class NotingRewriter(Rewriter):
    """Notes the threads that it works in."""

    def __init__(self) -> None:
        super().__init__(1 << 20)
        self.threads: set[int] = set()

    def rewrite(self, turn: Turn, plan: Plan, more: Sequence[Edit] = ()) -> bytes:
        self.threads.add(threading.get_ident())
        return super().rewrite(turn, plan, more)


def _make_case(results: int) -> tuple[Turn, Plan]:
    """A conversation with so many tool results, all of which are cleared."""
    messages: list[JSON] = [{"role": "user", "content": "Fix it."}]
    for at in range(results):
        call = {"id": f"c{at}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{at}", "content": "x" * 200},
        ]
    messages.append({"role": "user", "content": "Go on."})
    marks = [Mark(position) for position in range(2, 2 * results + 1, 2)]
    received = read(render(messages))
    return make_turn(received), make_plan(None, [make_batch(received.conversation, marks)])


@pytest.mark.parametrize(("results", "is_in_thread"), [(10, False), (400, True)])
async def test_a_body_with_much_to_shorten_is_made_in_a_thread(results: int, is_in_thread: bool) -> None:
    turn, plan = _make_case(results)
    lanes, rewriter = Lanes(), NotingRewriter()
    fair = FairRewriter(rewriter, lanes)
    more = [make_usage_edit(turn.received.body)]
    rewritten, asking = await fair.rewrite(turn, plan), await fair.rewrite(turn, plan, more)
    lanes.close()
    assert rewritten == Rewriter(0).rewrite(turn, plan)
    assert asking == Rewriter(0).rewrite(turn, plan, more)
    assert (threading.get_ident() not in rewriter.threads) is is_in_thread
