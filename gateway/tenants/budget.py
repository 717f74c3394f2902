"""What the summaries of a tenant may use in an hour: calls and tokens. Beyond it no summary is made.

A call is counted before it is made, with the estimated tokens of its prompt, so that many calls at once do
not exceed the budget together. Its own usage corrects the tokens as soon as it is known.
"""

import logging
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from gateway.store.keys import make_tag
from gateway.tenants.ledger import Ledger, Rate
from gateway.tenants.tenants import Tenant

log = logging.getLogger("gateway.quotas")

_HOUR: Final = 3_600.0


class Expense(NamedTuple):
    """What one call was counted with. rate: None if its tokens are not limited."""

    rate: Rate | None
    tokens: int


_FREE: Final = Expense(None, 0)


class SummaryBudget:
    """clock: seconds that never go back."""

    def __init__(self, ledger: Ledger, clock: Callable[[], float] = time.monotonic) -> None:
        self._ledger = ledger
        self._clock = clock
        # Until when a tenant is not asked again; one with other limits, after a reload, is.
        self._spent_until: dict[Tenant, float] = {}
        # When each tenant was refused last, by its id.
        self._refused_at: dict[str, float] = {}

    def is_spent(self, tenant: Tenant) -> bool:
        """Whether a call would be refused now, as far as this process knows."""
        return self._clock() < self._spent_until.get(tenant, 0.0)

    async def spend(self, tenant: Tenant, tokens: int) -> Expense | None:
        """Counts a call of so many estimated tokens. None, and nothing is counted, if that is too much."""
        spent = await self._count(tenant, tokens)
        if isinstance(spent, float):
            self._note_refusal(tenant, spent)
            return None
        self._note_room(tenant)
        return spent

    async def spend_if_room(self, tenant: Tenant, tokens: int) -> Expense | None:
        """The same for a call that a smaller one can replace: that there is no room is not noted."""
        spent = await self._count(tenant, tokens)
        return None if isinstance(spent, float) else spent

    async def _count(self, tenant: Tenant, tokens: int) -> Expense | float:
        """If that is too much, the seconds until there is room for it."""
        quota = tenant.quota
        if quota is None or not quota.limits_summaries:
            return _FREE
        calls = _make_rate(tenant, "summary-calls", quota.summary_calls_per_hour)
        rate = _make_rate(tenant, "summary-tokens", quota.summary_tokens_per_hour)
        wait_seconds = await self._ledger.count(calls) if calls is not None else 0.0
        if not wait_seconds and rate is not None:
            wait_seconds = await self._ledger.count(rate, tokens)
            if wait_seconds and calls is not None:
                await self._ledger.count(calls, -1)
        return float(wait_seconds) if wait_seconds else Expense(rate, tokens)

    def settle(self, expense: Expense, tokens: int) -> None:
        """What the call has really used. A call that is never settled counts as estimated."""
        if expense.rate is not None and tokens != expense.tokens:
            self._ledger.correct_later(expense.rate, tokens - expense.tokens)

    def _note_refusal(self, tenant: Tenant, wait_seconds: float) -> None:
        """Room comes back little by little, and is used at once. So one line tells of a whole hour."""
        now = self._clock()
        self._spent_until = {each: until for each, until in self._spent_until.items() if until > now}
        self._spent_until[tenant] = now + wait_seconds
        if now >= self._refused_at.get(tenant.id, now - _HOUR) + _HOUR:
            log.warning(
                "the summary budget of tenant %s is used up: old turns become digests where they must",
                tenant.display_name,
            )
        self._refused_at[tenant.id] = now

    def _note_room(self, tenant: Tenant) -> None:
        refused_at = self._refused_at.get(tenant.id)
        if refused_at is not None and self._clock() >= refused_at + _HOUR:
            del self._refused_at[tenant.id]
            log.info("the summary budget of tenant %s has room again", tenant.display_name)


def _make_rate(tenant: Tenant, name: str, most: int | None) -> Rate | None:
    return Rate(make_tag(tenant.id), name, most, _HOUR) if most is not None else None
