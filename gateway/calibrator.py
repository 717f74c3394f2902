"""Learns from what upstream counted: how its count compares with ours, and whether it left something out."""

from gateway.conversations.turn import Turn
from gateway.core.compaction.plan import Plan
from gateway.core.history.view import measure
from gateway.core.sizing.truncation import Expected, expect, had_in_force, is_suspicious, is_truncated
from gateway.core.sizing.usage import Usage
from gateway.limits.book import LimitsBook
from gateway.reporting.journal import Journal
from gateway.sizes import Sizer
from gateway.state.state import State

# To count more takes longer than a hundred requests.
_SMALL_BYTES = 32 * 1024


class Calibrator:
    def __init__(self, state: State, sizer: Sizer, book: LimitsBook, journal: Journal) -> None:
        self._state = state
        self._sizer = sizer
        self._book = book
        self._journal = journal

    def wants_look(self, turn: Turn, plan: Plan, usage: Usage, *, in_sight: bool) -> bool:
        """Is this answer worth being counted, although no decision needs it? Far below the lines a small one
        teaches as much as a large one. in_sight: are the lines near?
        """
        if _is_suspicious(turn, plan, usage.prompt_tokens):
            return True
        if len(turn.received.body.data) > _SMALL_BYTES and not in_sight:
            return False
        calibration = self._state.read_calibration(turn.owner, turn.meter)
        return calibration.wants_sample(usage.prompt_tokens)

    async def learn(self, turn: Turn, plan: Plan, usage: Usage) -> Turn | None:
        """By an answer. The turn under the limits that it betrays, where upstream left out a part of the
        prompt without a word (FACTS §4): that is an overflow, and its usage says nothing of what was sent.
        """
        place, is_long = (turn.owner, turn.upstream.name, turn.model), turn.has_long_window
        self._book.unlearn(*place, usage.prompt_tokens, has_long_window=is_long)
        expected = await self.calibrate(turn, plan, usage.prompt_tokens)
        if expected is None:
            return None
        self._journal.note_truncation(turn, usage.prompt_tokens, expected.before, expected.added)
        self._book.learn_unknown(*place, usage.total, has_long_window=is_long)
        return turn.under(await self._book.load(*place, has_long_window=is_long))

    async def calibrate(self, turn: Turn, plan: Plan, prompt_tokens: int) -> Expected | None:
        """By a count of upstream, in an answer or in a refusal. What was expected, if a part was left out.

        Where upstream was asked to leave something out, or has folded it, a count says nothing of the rest.
        """
        state, conversation = self._state, turn.received.conversation
        if turn.received.body.envelope.is_trimmed or any(each.is_sealed for each in conversation.messages):
            return None
        sizes = await self._sizer.measure(turn.received, turn.policy.estimator)
        calibration = await state.load_calibration(turn.owner, turn.meter)
        expected = expect(conversation, sizes, (plan.pivot, plan.batches), turn.own_head, calibration)
        if expected is not None and is_truncated(prompt_tokens, expected):
            return expected
        if expected is not None and _is_suspicious(turn, plan, prompt_tokens):
            # Not sure enough to act on, too odd to learn from.
            return None
        end = len(conversation.messages)
        raw = measure(plan.view, conversation, sizes.messages, sizes.environment, end)
        state.save_calibration(turn.owner, turn.meter, calibration.with_sample(prompt_tokens, raw))
        return None


def _is_suspicious(turn: Turn, plan: Plan, prompt_tokens: int) -> bool:
    head = turn.own_head
    if head is None or not had_in_force(head, plan.pivot, plan.batches):
        return False
    added_bytes = 0
    for message in turn.received.conversation.messages.since(head.length):
        added_bytes += message.size_bytes
    return is_suspicious(prompt_tokens, head.prompt_tokens, added_bytes)
